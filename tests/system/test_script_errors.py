# SPDX-License-Identifier: Apache-2.0
"""An error of the script itself is not tried again: the person reads what it is, which line proves it, what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.system.supervised import SCRIPTS, Supervised, torchrun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

COUNTING = SCRIPTS / "counting.py"
ALONE = (sys.executable, str(COUNTING))


def test_a_type_error_on_every_rank_ends_the_run_at_once_with_what_to_do(supervised: Supervised) -> None:
    assert supervised.run(*torchrun(COUNTING, "--fail", "type-error")) == 3

    assert len(supervised.launches()) == 1
    last = supervised.output.strip().splitlines()[-6:]
    assert any("TypeError" in line for line in last), last
    assert any("print(length / 2)" in line or "unsupported operand" in line for line in last), last
    assert any("What to do:" in line for line in last), last
    assert supervised.status["outcome"]["reason"] == "TypeError"
    assert supervised.processes() == []


def test_an_error_on_one_rank_names_that_rank(supervised: Supervised) -> None:
    assert supervised.run(*torchrun(COUNTING, "--fail", "type-error", "--rank", "1", "--at", "20")) == 3

    assert len(supervised.launches()) == 1
    assert "rank 1" in supervised.output
    (incident,) = supervised.story["incidents"]
    assert incident["reason"] == "TypeError"
    assert "counting.py" in supervised.order("story")


def test_what_dies_before_its_first_step_each_time_is_not_launched_for_ever(supervised: Supervised) -> None:
    supervised.configure("[policy]\nbackoff_s = 0.1\n")

    assert supervised.run(*ALONE, "--fail", "kill") == 3

    assert len(supervised.launches()) == 2
    assert "failed before their first step" in supervised.output


def test_the_same_failure_at_the_same_step_twice_ends_the_run_early(supervised: Supervised) -> None:
    supervised.configure("[policy]\nbackoff_s = 0.1\n")

    assert supervised.run(*ALONE, "--fail", "kill", "--at", "30") == 3

    assert len(supervised.launches()) == 2
    assert "2 attempts in a row failed at step 30 with the same reason" in supervised.output


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (torchrun(Path("nowhere.py")), "there is no training script"),
        (("no-such-program", "train.py"), "there is no program 'no-such-program'"),
        (("torchrun", "--standalone", "--max-restarts", "3", str(COUNTING)), "--max-restarts"),
        ((), "no command to run"),
    ],
)
def test_a_command_that_cannot_work_is_refused_before_anything_is_started(
    supervised: Supervised, command: tuple[str, ...], complaint: str
) -> None:
    assert supervised.run(*command) == 2

    assert complaint in supervised.output
    assert not (supervised.folder / "journal.jsonl").exists()
    assert supervised.processes() == []


def test_a_module_that_takes_the_place_of_ours_is_named_before_anything_is_started(supervised: Supervised) -> None:
    script = supervised.work / "train.py"
    script.write_text("import checkpoint\n")
    (supervised.work / "checkpoint.py").write_text("")

    assert supervised.run(*torchrun(script)) == 2

    assert f"{supervised.work / 'checkpoint.py'} takes the place of our package 'checkpoint'" in supervised.output
    assert "rename" in supervised.output
    assert not (supervised.folder / "journal.jsonl").exists()


def test_an_unknown_key_of_the_configuration_is_refused_with_its_nearest_known_one(supervised: Supervised) -> None:
    supervised.configure("[policy]\nmost_rollback = 1\n")

    assert supervised.run(*ALONE) == 2

    assert "most_rollback" in supervised.output and "most_rollbacks" in supervised.output
