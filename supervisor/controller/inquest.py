# SPDX-License-Identifier: Apache-2.0
"""What the diagnosis gets to read of an ended attempt, and where its answer is kept.

The verdict goes to the core; the whole diagnosis with its proving lines goes into the incident's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.controller.ending import Ending
from supervisor.controller.incident_files import DIAGNOSIS_FILE
from supervisor.controller.run_folder import read_json, write_json
from supervisor.core.api import Action, Category, Failure, FailureKind, Verdict
from supervisor.diagnosis import api as diagnosis

_MOST_BYTES = 32 * 2**20
"""Of all logs together: reading so much takes about three seconds."""
_MOST_BYTES_A_LOG = 4 * 2**20
_LEAST_BYTES_A_LOG = 64 * 2**10
_STORAGE = "S3StorageError"
_WEAK_CONFIDENCE = 0.6
"""A diagnosis up to here rests on symptoms, which a full disk causes, too."""
_FULL_CONFIDENCE = 0.8
_RANK_FOLDER = re.compile(r"rank-(\d+)$")


def prepare() -> None:
    """Have the diagnosis ready before it is needed: compiling its table takes a good part of a second."""
    diagnosis.prepare()


def hold(
    *,
    attempt_folder: Path,
    incident_folder: Path,
    failure: Failure | None,
    ending: Ending,
    full_disk: Path | None = None,
) -> Verdict:
    """Diagnose the attempt whose logs lie in `attempt_folder`; raises OSError when nothing can be read or written.

    `full_disk` is the run folder when its disk was full as the attempt failed.
    """
    found = diagnosis.diagnose(
        sources(attempt_folder),
        exits=[
            diagnosis.RankExit(each.rank, node, each.exit_code, each.at, each.local_rank, each.pid)
            for node, each in ending.exits
        ],
        world_size=ending.world_size,
        hang=hang_of(failure, incident_folder),
        stopped_by_us=ending.stopped_by_us,
        launcher_exit=ending.launcher_exit,
        failed_at=None if failure is None else failure.since,
        is_live=True,
        kernel=kernel_logs(attempt_folder),
    )
    if full_disk is not None:
        found = on_full_disk(found, full_disk)
    incident_folder.mkdir(parents=True, exist_ok=True)
    kept = {**diagnosis.to_json(found), "attempt": 0 if failure is None else failure.attempt}
    write_json(incident_folder / DIAGNOSIS_FILE, kept)
    return verdict_of(found, failure)


def on_full_disk(found: diagnosis.Diagnosis, folder: Path) -> diagnosis.Diagnosis:
    """The diagnosis of an attempt whose logs had no room: only a cause that the rest proves well stands against it."""
    is_proved = found.confidence > _WEAK_CONFIDENCE and found.reason not in (diagnosis.UNKNOWN, _STORAGE)
    if found.fatal or is_proved:
        return found
    return replace(
        found,
        reason=_STORAGE,
        action=diagnosis.Action.WAIT_AND_RETRY,
        confidence=max(found.confidence, _FULL_CONFIDENCE),
        explanation=f"the disk of {folder} was full, and whoever writes on a full disk fails. {found.explanation}",
        suggestion=f"Free space on the disk of {folder} or raise its quota; then it goes on by itself.",
        decided_by="full disk",
        node=None,
        rank=None,
        service=None,
    )


def verdict_of(found: diagnosis.Diagnosis, failure: Failure | None) -> Verdict:
    """For the core. A loss spike is known from the loss, whatever the logs say; they may still name a node."""
    suspects = () if found.node is None else (found.node,)
    if failure is not None and failure.kind in (FailureKind.SPIKE, FailureKind.NAN):
        return Verdict(
            reason="LossNaN" if failure.kind is FailureKind.NAN else "LossSpike",
            category=Category.OTHER,
            action=Action.ROLLBACK,
            explanation=failure.detail,
            suggestion="look at the batches named in the story",
            confidence=1.0,
            decided_by="loss",
            suspects=suspects if found.fatal else (),
            fatal=found.fatal,
        )
    return Verdict(
        reason=found.reason,
        category=Category(found.category.value),
        action=Action(found.action.value),
        explanation=found.explanation,
        suggestion=found.suggestion,
        confidence=found.confidence,
        decided_by=found.decided_by,
        suspects=suspects,
        fatal=found.fatal,
        service=found.service,
        rank=found.rank,
    )


def sources(attempt_folder: Path) -> list[diagnosis.LogSource]:
    """Every rank's output and error file and the launcher's own output, with the rank that each belongs to."""
    found = [
        diagnosis.LogSource(str(path), path, stream=diagnosis.Stream.LAUNCHER)
        for path in (attempt_folder / "launcher.out", attempt_folder / "launcher.err")
        if path.exists()
    ]
    for folder in sorted(attempt_folder.glob("rank-*")):
        match = _RANK_FOLDER.match(folder.name)
        if match is not None:
            found += _of_rank(folder, int(match[1]))
    last_bytes = bytes_a_log([_size(each.lines) for each in found if isinstance(each.lines, Path)])
    return [replace(each, last_bytes=last_bytes) for each in found]


def _of_rank(folder: Path, rank: int) -> Iterator[diagnosis.LogSource]:
    for name, stream in (("stdout.log", diagnosis.Stream.STDOUT), ("stderr.log", diagnosis.Stream.STDERR)):
        path = folder / name
        if path.exists():
            yield diagnosis.LogSource(str(path), path, rank=rank, stream=stream)
            # The link leads into the launcher's own folder, where torchrun has the rank's error file beside its log.
            error_file = path.resolve().with_name("error.json")
            if stream is diagnosis.Stream.STDERR and error_file.exists():
                yield diagnosis.LogSource(str(error_file), error_file, rank=rank, stream=stream)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def bytes_a_log(sizes: Sequence[int]) -> int:
    """How much of each log's end is read, so that all together stay within a bound, and each keeps a little."""
    share = _MOST_BYTES_A_LOG
    while share > _LEAST_BYTES_A_LOG and sum(min(size, share) for size in sizes) > _MOST_BYTES:
        share //= 2
    return share


def kernel_logs(attempt_folder: Path) -> list[diagnosis.LogSource]:
    """What the agents kept of their hosts' kernel logs."""
    found = []
    for path in sorted(attempt_folder.glob("kernel-*.log")):
        node = path.stem.removeprefix("kernel-")
        found.append(
            diagnosis.LogSource(
                str(path), path, node=node, stream=diagnosis.Stream.KERNEL, last_bytes=_MOST_BYTES_A_LOG
            )
        )
    return found


def hang_of(failure: Failure | None, incident_folder: Path) -> diagnosis.Hang | None:
    if failure is None or failure.kind not in (FailureKind.HANG, FailureKind.LOST):
        return None
    kept = diagnosis.read_evidence(incident_folder)
    silent_s = max(0.0, failure.noticed_at - failure.since)
    return diagnosis.Hang(failure.step, silent_s, kept, failure.rank, str(incident_folder))


def read_diagnosis(incident_folder: Path) -> dict[str, object]:
    """What `hold` kept, empty when there is none."""
    return read_json(incident_folder / DIAGNOSIS_FILE)
