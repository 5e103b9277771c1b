# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints count: folder names, the fence's rule of visibility, and what retention may delete. Pure.

A late commit of an attempt that the fence has cut off is invisible by this rule alone, however its race went.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from checkpoint.api import CheckpointRef, CommittedCheckpoint, Fence

PARTIAL_SUFFIX = ".tmp"
DELETED_PREFIX = "deleted-"
SET_ASIDE_PREFIX = "damaged-"
_FOLDER = re.compile(r"step-(\d{12})-a(\d+)")


def folder_of(ref: CheckpointRef) -> str:
    """Name of the folder that a checkpoint has once it is committed."""
    return f"step-{ref.step:012d}-a{ref.attempt}"


def partial_folder_of(ref: CheckpointRef) -> str:
    """Name of the folder in which a checkpoint is written before its commit."""
    return folder_of(ref) + PARTIAL_SUFFIX


def ref_of(folder: str) -> CheckpointRef | None:
    """The checkpoint that a folder's name (committed, partial or set aside) stands for, or None."""
    name = folder.removeprefix(SET_ASIDE_PREFIX).removesuffix(PARTIAL_SUFFIX)
    found = _FOLDER.match(name)
    return CheckpointRef(int(found[1]), int(found[2])) if found else None


def is_committed_name(folder: str) -> bool:
    """Whether the name is that of a committed checkpoint's folder."""
    return _FOLDER.fullmatch(folder) is not None


def is_visible(ref: CheckpointRef, fence: Fence | None) -> bool:
    """Whether a committed checkpoint counts; without any fence there is nothing that could cut it off."""
    return fence is None or ref.attempt == fence.attempt or ref in fence.sealed


def advanced_fence(
    attempt: int,
    *,
    resume: CheckpointRef | None,
    visible: Iterable[CheckpointRef],
    controller: str,
    unhealthy: Iterable[CheckpointRef] = (),
) -> Fence:
    """The fence of a new attempt, which seals what is visible now up to the checkpoint that it resumes from.

    Of the `unhealthy` ones those are still named that stay visible.
    """
    sealed = tuple(sorted(ref for ref in visible if resume is not None and ref <= resume))
    return Fence(
        attempt=attempt,
        resume_step=resume.step if resume else None,
        resume_attempt=resume.attempt if resume else None,
        sealed=sealed,
        controller=controller,
        unhealthy=tuple(ref for ref in sealed if ref in set(unhealthy)),
    )


def expendable(
    visible: Sequence[CommittedCheckpoint], *, keep: int, keep_every: int | None = None
) -> list[CommittedCheckpoint]:
    """What retention may delete of the visible checkpoints, oldest first.

    Kept are the newest `keep`, those whose step is a multiple of `keep_every`, and the newest that is not known to
    be unhealthy: a rollback needs one from before the loss went wrong.
    """
    ordered = sorted(visible, key=lambda each: each.ref)
    kept = {each.ref for each in ordered[-max(keep, 1) :]}
    good = [each.ref for each in ordered if each.healthy is not False]
    kept.update(good[-1:])
    if keep_every is not None:
        kept.update(each.ref for each in ordered if each.step % keep_every == 0)
    return [each for each in ordered if each.ref not in kept]


def parse_resume(text: str) -> CheckpointRef | None:
    """Read `<step>:<attempt>` or `none` (start from nothing).

    Raises:
        ValueError: it is neither.
    """
    if text == "none":
        return None
    step, separator, attempt = text.partition(":")
    if not (separator and step.isdecimal() and attempt.isdecimal()):
        raise ValueError(f"{text!r} is neither '<step>:<attempt>' nor 'none'")
    return CheckpointRef(int(step), int(attempt))
