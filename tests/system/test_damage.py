# SPDX-License-Identifier: Apache-2.0
"""A damaged checkpoint and a full disk cost what they cost, and no more: the run goes on, and a person is told."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from checkpoint import api as checkpoints
from supervisor.core.api import events
from tests.system.supervised import SCRIPTS, Supervised, torchrun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

COUNTING = SCRIPTS / "counting.py"
MODEL = ("--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--batch", "4", "--save-every", "20")


def saved_last(supervised: Supervised) -> int:
    """The step of the last save, once the reports have caught up with the steps."""
    reached = supervised.steps(1)
    time.sleep(1.0)
    return reached[-1] // 60 * 60 if supervised.steps(1) == reached else -1


def test_when_the_newest_checkpoint_is_damaged_the_one_before_it_is_taken_and_told(
    supervised: Supervised, tmp_path: Path
) -> None:
    pace = tmp_path / "pace"
    # Nothing is held in memory, from where the newest would be restored whatever became of the store.
    supervised.environment |= {"STEP_S": "0.05", "PACE": str(pace), "CHECKPOINT_HOLD_S": "0"}
    supervised.start(*torchrun(SCRIPTS / "paced_gpt.py", *MODEL, "--save-every", "60", "--steps", "300"))
    catalogue = checkpoints.open_catalogue(str(supervised.work / "checkpoints"))
    supervised.until("two checkpoints", lambda: len(catalogue.committed()) >= 2)
    # The next save is minutes away from now on, so that the writer has nothing to commit when the ranks are stopped.
    pace.write_text("2.0")
    supervised.until("the last save is committed", lambda: catalogue.committed()[-1].step == saved_last(supervised))
    for rank in supervised.ranks():
        rank.send(signal.SIGSTOP)
    *_, older, newest = catalogue.committed()
    flip_a_byte(Path(newest.uri))

    supervised.rank(1).send(signal.SIGKILL)
    pace.write_text("0.0")

    assert supervised.end() == 0, supervised.output
    assert [each.step for each in supervised.events(events.AttemptRestored)] == [None, older.step]
    assert f"checkpoint of step {newest.step} is damaged" in supervised.output
    assert f"step {older.step} was restored instead" in supervised.output


def flip_a_byte(folder: Path) -> None:
    """In the middle of the largest file, which holds tensors."""
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def test_a_full_disk_under_the_run_folder_stops_no_training_and_is_told(
    supervised: Supervised, full_disk: Path
) -> None:
    supervised.folder = full_disk / "run"
    command = torchrun(COUNTING, "--steps", "100000", "--quiet")
    supervised.start(*command, options=("--folder", str(supervised.folder)))
    supervised.wait_for_step(20)
    filler = full_disk / "filler"
    fill(filler)
    ranks, reached = supervised.ranks(), supervised.status["step"]
    supervised.until("steps go on", lambda: supervised.status["step"] > reached + 100)
    assert supervised.ranks() == ranks

    supervised.rank(1).send(signal.SIGKILL)
    supervised.wait_for_output("No space left on device")
    filler.unlink()

    supervised.wait_for_step(20, attempt=2)
    supervised.order("stop")
    assert supervised.end() == 130, supervised.output


def test_ranks_that_die_of_printing_on_a_full_disk_come_back_when_there_is_room(
    supervised: Supervised, full_disk: Path
) -> None:
    supervised.folder = full_disk / "run"
    supervised.configure("[policy]\nservice_wait_s = 1\n")
    command = torchrun(COUNTING, "--steps", "100000")
    supervised.start(*command, options=("--folder", str(supervised.folder), "--output", "none"))
    supervised.wait_for_step(20)
    ranks = {each.pid for each in supervised.ranks()}
    filler = full_disk / "filler"
    fill(filler)
    supervised.wait_for_output(f"the disk of {supervised.folder} is full")
    supervised.until("the ranks that print are gone", lambda: not ranks & {each.pid for each in supervised.ranks()})
    filler.unlink()

    supervised.wait_for_step(20, attempt=2)
    supervised.order("stop")
    assert supervised.end() == 130, supervised.output
    (diagnosed,) = supervised.events(events.Diagnosed)
    assert diagnosed.verdict.reason == "S3StorageError"
    assert f"the disk of {supervised.folder} was full" in supervised.output
    assert supervised.output.count("is full:") == 1 and "Traceback" not in supervised.output
    assert "has room again" in supervised.output


def fill(path: Path) -> None:
    """Take all that is left of the disk."""
    with path.open("wb", buffering=0) as file:
        while shutil.disk_usage(path).free:
            file.write(bytes(4096))


def test_a_run_folder_that_cannot_be_written_is_refused_with_what_to_do(
    supervised: Supervised, full_disk: Path
) -> None:
    fill(full_disk / "filler")
    nowhere = supervised.work / "a-file"
    nowhere.write_text("")

    for folder in (full_disk / "run", nowhere / "run"):
        assert supervised.run(sys.executable, str(COUNTING), options=("--folder", str(folder))) == 2
        last = supervised.output.splitlines()[-1]
        assert str(folder) in last and "--folder" in last

    assert supervised.processes() == []
