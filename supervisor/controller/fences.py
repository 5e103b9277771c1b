# SPDX-License-Identifier: Apache-2.0
"""The fence and the checkpoints of a run as the controller uses them: the newest attempt, what counts, where to resume.

The fence lies in the run folder and, once their URI is known, with the checkpoints; it is written before an attempt is
launched, so that an older one can commit nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from checkpoint import api as checkpoints
from supervisor.core.api import Checkpoint, decisions


def newest_attempt(uri: str | None, folder: Path) -> int:
    """The largest attempt that fence and manifests know; raises CheckpointError."""
    local = checkpoints.open_catalogue(str(folder)).newest_attempt()
    return max(local, 0 if uri is None else checkpoints.open_catalogue(uri).newest_attempt())


def committed(uri: str | None) -> tuple[Checkpoint, ...] | None:
    """Visible checkpoints, oldest first; None while nobody knows where they are."""
    if uri is None:
        return None
    return tuple(
        Checkpoint(each.step, each.attempt, each.position, each.healthy)
        for each in checkpoints.open_catalogue(uri).committed()
    )


def path_of(uri: str, wanted: Checkpoint) -> str | None:
    """Where the checkpoint lies, when it is visible."""
    visible = checkpoints.open_catalogue(uri).committed()
    return next((c.uri for c in visible if (c.step, c.attempt) == (wanted.step, wanted.attempt)), None)


def raise_fence(
    uri: str | None,
    folder: Path,
    launch: decisions.Launch,
    controller: str,
    unhealthy: Iterable[tuple[int, int]] = (),
) -> None:
    """Name `launch.attempt` the newest and seal what it may build on; never lowers a fence. Raises CheckpointError.

    `unhealthy` are the step and attempt of checkpoints that turned out to be so.
    """
    for location in [str(folder)] if uri is None else [str(folder), uri]:
        catalogue = checkpoints.open_catalogue(location)
        present = catalogue.read_fence()
        if present is None or present.attempt < launch.attempt:
            visible = [] if launch.from_nothing else [each.ref for each in catalogue.committed()]
            known = {checkpoints.CheckpointRef(*each) for each in unhealthy} | set(present.unhealthy if present else ())
            catalogue.write_fence(_fence(launch, visible, controller, known))


def _fence(
    launch: decisions.Launch,
    visible: list[checkpoints.CheckpointRef],
    controller: str,
    unhealthy: set[checkpoints.CheckpointRef],
) -> checkpoints.Fence:
    if launch.resume is not None:
        resume: checkpoints.CheckpointRef | None = checkpoints.CheckpointRef(launch.resume.step, launch.resume.attempt)
    else:
        resume = visible[-1] if visible else None
    sealed = tuple(ref for ref in visible if resume is not None and ref.step <= resume.step)
    return checkpoints.Fence(
        attempt=launch.attempt,
        resume_step=None if resume is None else resume.step,
        resume_attempt=None if resume is None else resume.attempt,
        sealed=sealed,
        controller=controller,
        unhealthy=tuple(ref for ref in sealed if ref in unhealthy),
    )


def environment(launch: decisions.Launch, folder: Path) -> tuple[tuple[str, str], ...]:
    """How attempt, fence and resume step reach the checkpoint library."""
    pairs = [("CHECKPOINT_ATTEMPT", str(launch.attempt)), ("CHECKPOINT_FENCE", str(folder / "FENCE.json"))]
    if launch.resume is not None:
        pairs.append(("CHECKPOINT_RESUME", f"{launch.resume.step}:{launch.resume.attempt}"))
    elif launch.from_nothing:
        pairs.append(("CHECKPOINT_RESUME", "none"))
    return tuple(pairs)
