# SPDX-License-Identifier: Apache-2.0
"""What the diagnosis gets to read of an ended attempt, and where its answer is kept.

The verdict goes to the core; the whole diagnosis with its proving lines goes into the incident's folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from supervisor.agent import api as agent
from supervisor.controller.run_folder import read_json, write_json
from supervisor.core.api import Action, Category, Failure, FailureKind, Verdict
from supervisor.diagnosis import api as diagnosis

DIAGNOSIS_FILE = "diagnosis.json"
_RANK_FOLDER = re.compile(r"rank-(\d+)$")


def hold(
    *,
    attempt_folder: Path,
    incident_folder: Path,
    failure: Failure | None,
    exits: tuple[tuple[str, agent.RankExit], ...],
) -> Verdict:
    """Diagnose the attempt whose logs lie in `attempt_folder`; raises OSError when nothing can be read or written."""
    found = diagnosis.diagnose(
        sources(attempt_folder),
        exits=[
            diagnosis.RankExit(each.rank, node, each.exit_code, each.at, each.local_rank, each.pid)
            for node, each in exits
        ],
        hang=hang_of(failure, incident_folder),
        stopped_by_us=frozenset(each.rank for _, each in exits if each.by_us),
    )
    incident_folder.mkdir(parents=True, exist_ok=True)
    kept = {**diagnosis.to_json(found), "attempt": 0 if failure is None else failure.attempt}
    write_json(incident_folder / DIAGNOSIS_FILE, kept)
    return verdict_of(found, failure)


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
    """Every rank's output and the launcher's own, with the rank that each belongs to."""
    found = [
        diagnosis.LogSource(str(path), path, stream=diagnosis.Stream.LAUNCHER)
        for path in (attempt_folder / "launcher.out", attempt_folder / "launcher.err")
        if path.exists()
    ]
    for folder in sorted(attempt_folder.glob("rank-*")):
        match = _RANK_FOLDER.match(folder.name)
        if match is None:
            continue
        for name, stream in (("stdout.log", diagnosis.Stream.STDOUT), ("stderr.log", diagnosis.Stream.STDERR)):
            path = folder / name
            if path.exists():
                found.append(diagnosis.LogSource(str(path), path, rank=int(match[1]), stream=stream))
    return found


def hang_of(failure: Failure | None, incident_folder: Path) -> diagnosis.Hang | None:
    if failure is None or failure.kind not in (FailureKind.HANG, FailureKind.LOST):
        return None
    stacks = {
        int(path.stem.rpartition("-")[2]): path.read_text(errors="replace")
        for path in incident_folder.glob("stacks-rank-*.txt")
    }
    return diagnosis.Hang(failure.step, max(0.0, failure.noticed_at - failure.since), stacks)


def read_diagnosis(incident_folder: Path) -> dict[str, object]:
    """What `hold` kept, empty when there is none."""
    return read_json(incident_folder / DIAGNOSIS_FILE)
