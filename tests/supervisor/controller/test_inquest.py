# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis gets to read of an ended attempt, and what of it is kept with the incident."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from supervisor.agent import api as agent
from supervisor.agent import kernel_log
from supervisor.controller import inquest
from supervisor.controller.ending import Ending
from supervisor.core.api import Action, Failure, FailureKind, Verdict

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    step()\n{error}\n'
HANGS = Path(__file__).parents[2] / "data" / "hangs"


class Attempt:
    """The folder of an attempt as torchrun and the agent leave it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "attempts" / "0001"
        self.incident = folder / "incidents" / "0001"
        self.folder.mkdir(parents=True)

    def write(self, rank: int, *, stderr: str = "", stdout: str = "", error_file: object = None) -> None:
        real = self.folder / "torchrun" / "x" / "attempt_0" / str(rank)
        stable = self.folder / f"rank-{rank}"
        real.mkdir(parents=True)
        stable.mkdir()
        for name, text in (("stderr.log", stderr), ("stdout.log", stdout)):
            (real / name).write_text(text)
            (stable / name).symlink_to(real / name)
        if error_file is not None:
            (real / "error.json").write_text(json.dumps(error_file))

    def hold(
        self,
        *ends: agent.RankExit,
        failure: Failure | None = None,
        launcher: int | None = None,
        full_disk: Path | None = None,
    ) -> Verdict:
        ending = Ending(tuple(("n0", end) for end in ends), len(ends) or None, launcher)
        return inquest.hold(
            attempt_folder=self.folder,
            incident_folder=self.incident,
            failure=failure,
            ending=ending,
            full_disk=full_disk,
        )

    @property
    def kept(self) -> dict[str, object]:
        return inquest.read_diagnosis(self.incident)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def ended(rank: int, code: int, at: float = 100.0, *, by_us: bool = False) -> agent.RankExit:
    return agent.RankExit(rank, rank, 1000 + rank, code, at, by_us=by_us)


def hang(step: int = 120, rank: int | None = None) -> Failure:
    return Failure(1, 1, FailureKind.HANG, 100.0, 105.0, step, "no step", rank=rank)


def test_a_script_error_of_all_ranks_is_told_as_one_with_a_line_of_each(attempt: Attempt) -> None:
    for rank in range(4):
        attempt.write(rank, stderr=TRACEBACK.format(error=f"ValueError: rank {rank} cannot reshape"))
    ends = [ended(0, 1), ended(1, 1, 100.1), ended(2, -15, 100.2, by_us=True), ended(3, -15, 100.2, by_us=True)]
    verdict = attempt.hold(*ends)
    assert (verdict.reason, verdict.action, verdict.rank, verdict.suspects) == ("ValueError", Action.FIX_USER, None, ())
    assert "4 ranks met the same error" in verdict.explanation
    proofs = attempt.kept["evidence"]
    assert isinstance(proofs, list)
    assert [Path(proof["file"]).parent.name for proof in proofs] == ["rank-0", "rank-1", "rank-2", "rank-3"]


def test_the_error_of_one_rank_is_not_blurred_by_those_that_we_stopped(attempt: Attempt) -> None:
    attempt.write(0, stderr="RuntimeError: [pair.cc:598] Connection closed by peer [127.0.0.1]:1\n")
    attempt.write(1, stderr=TRACEBACK.format(error="KeyError: 'lr'"))
    verdict = attempt.hold(ended(0, -15, 100.1, by_us=True), ended(1, 1))
    assert (verdict.reason, verdict.rank) == ("KeyError", 1)


def test_torchruns_error_file_is_read_where_the_log_says_nothing(attempt: Attempt) -> None:
    stack = TRACEBACK.format(error="ZeroDivisionError: division by zero")
    message = {
        "message": "ZeroDivisionError: division by zero",
        "extraInfo": {"py_callstack": stack, "timestamp": "100"},
    }
    attempt.write(0)
    attempt.write(1, error_file={"message": message})
    verdict = attempt.hold(ended(0, -15, by_us=True), ended(1, 1))
    assert (verdict.reason, verdict.rank) == ("ZeroDivisionError", 1)


def test_the_kernel_log_tells_who_killed_a_rank(attempt: Attempt) -> None:
    attempt.write(0)
    now = time.time()
    said = [
        kernel_log.Message(now - 5.0, "usb 1-1: new device"),
        kernel_log.Message(now - 1.0, "Out of memory: Killed process 1000 (python) total-vm:91881232kB"),
    ]
    lines = kernel_log.written(said, 0.0, now - 3.0)
    kernel_log.path_for(attempt.folder, "n0").write_text("\n".join(lines))
    verdict = attempt.hold(ended(0, -9, now), failure=Failure(1, 1, FailureKind.EXIT, now, now, 7, "killed"))
    assert (verdict.reason, verdict.action) == ("OutOfMemoryError", Action.FIX_USER)
    assert len(lines) == 1


def test_a_launcher_that_was_killed_is_told(attempt: Attempt) -> None:
    verdict = attempt.hold(launcher=-9)
    assert (verdict.reason, verdict.action) == ("NodeFailure", Action.RESTART_SAME)


def test_a_frozen_rank_is_named_from_what_was_kept(attempt: Attempt) -> None:
    attempt.incident.mkdir(parents=True)
    for path in (HANGS / "stopped").iterdir():
        (attempt.incident / path.name).write_bytes(path.read_bytes())
    verdict = attempt.hold(ended(0, -9, by_us=True), ended(1, -15, by_us=True), failure=hang())
    assert (verdict.reason, verdict.rank, verdict.suspects) == ("ExternalStop", 0, ())


def test_without_evidence_the_rank_that_the_detector_named_is_taken(attempt: Attempt) -> None:
    verdict = attempt.hold(ended(0, -15, by_us=True), ended(1, -15, by_us=True), failure=hang(rank=1))
    assert (verdict.reason, verdict.rank, verdict.suspects) == ("SilentHang", 1, ("n0",))


def test_only_the_end_of_a_huge_log_is_read_and_the_diagnosis_says_so(attempt: Attempt) -> None:
    filler = "step 7 loss 2.0\n" * 400_000
    attempt.write(0, stdout=filler, stderr=TRACEBACK.format(error="KeyError: 'lr'"))
    attempt.write(1, stderr=TRACEBACK.format(error="TypeError: early") + filler)
    verdict = attempt.hold(ended(0, 1), ended(1, -15, by_us=True))
    assert verdict.reason == "KeyError" and "only the last 4 MiB were read" in verdict.explanation


def test_a_short_log_is_read_whole_without_a_word_of_it(attempt: Attempt) -> None:
    attempt.write(0, stderr=TRACEBACK.format(error="KeyError: 'lr'"))
    assert "were read" not in attempt.hold(ended(0, 1)).explanation


MIB = 2**20


@pytest.mark.parametrize(
    ("sizes", "share"),
    [
        ([], 4 * MIB),
        ([500 * MIB], 4 * MIB),
        ([500 * MIB] * 8, 4 * MIB),
        ([500 * MIB] * 16, 2 * MIB),
        ([500 * MIB] * 2 + [1000] * 1000, 4 * MIB),
        ([500 * MIB] * 10_000, MIB // 16),
    ],
)
def test_many_large_logs_share_what_may_be_read(sizes: list[int], share: int) -> None:
    assert inquest.bytes_a_log(sizes) == share


BLOCK = """\
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-05_16:39:58
  host      : n0
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 78971)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 78971
============================================================
"""


def test_a_rank_that_was_killed_before_anybody_knew_it_is_started_again(attempt: Attempt) -> None:
    (attempt.folder / "launcher.err").write_text(BLOCK)
    verdict = attempt.hold(launcher=1)
    assert (verdict.reason, verdict.action) == ("NodeFailure", Action.RESTART_SAME)


@pytest.mark.parametrize(
    "last_words",
    ["", "Traceback (most recent call la", TRACEBACK.format(error="OSError: [Errno 28] No space left on device")],
)
def test_ranks_that_died_on_a_full_disk_wait_for_room_whatever_was_left_of_their_words(
    attempt: Attempt, tmp_path: Path, last_words: str
) -> None:
    attempt.write(0, stderr=last_words)
    attempt.write(1, stderr=last_words)
    verdict = attempt.hold(ended(0, 1), ended(1, 1), launcher=1, full_disk=tmp_path)
    assert (verdict.reason, verdict.action, verdict.suspects) == ("S3StorageError", Action.WAIT_AND_RETRY, ())
    assert f"the disk of {tmp_path} was full" in verdict.explanation
    assert f"Free space on the disk of {tmp_path}" in verdict.suggestion
    assert attempt.kept["reason"] == "S3StorageError"


def test_an_error_that_its_own_words_prove_is_not_laid_on_the_full_disk(attempt: Attempt, tmp_path: Path) -> None:
    attempt.write(0, stderr=TRACEBACK.format(error="TypeError: unsupported operand type(s) for +: 'int' and 'str'"))
    verdict = attempt.hold(ended(0, 1), launcher=1, full_disk=tmp_path)
    assert verdict.reason == "TypeError"
