# SPDX-License-Identifier: Apache-2.0
"""Commands that know nothing of a supervisor: judged by exit code, silence and what they print."""

from __future__ import annotations

import signal
import sys

import pytest

from supervisor import inspection
from tests.system.supervised import SCRIPTS, Supervised, torchrun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

UNMODIFIED = SCRIPTS / "unmodified.py"
RESUMING = """
[checkpoint]
pattern = "out/ckpt-*"
resume_argument = "--resume {checkpoint}"
"""
FOREIGN = """
[checkpoint]
uri = "out"
resume_argument = "--resume {checkpoint}"
"""


def first_step(supervised: Supervised, attempt: int) -> int:
    return min(row.step for row in inspection.step_rows(supervised.folder) if row.attempt == attempt)


def test_a_script_with_checkpoints_of_its_own_is_resumed_from_the_newest_whole_one(supervised: Supervised) -> None:
    supervised.configure(FOREIGN)
    supervised.environment["STEP_S"] = "0.05"
    supervised.start(*torchrun(UNMODIFIED, "--folders"))
    supervised.wait_for_step(70)
    partial = supervised.work / "out" / "checkpoint-190"
    partial.mkdir()
    (partial / "pytorch_model.bin").write_text("cut off before its last file")
    supervised.rank(1).send(signal.SIGKILL)

    assert supervised.end() == 0, supervised.output

    (_, relaunch) = supervised.launches()
    assert relaunch.resume is not None and 60 <= relaunch.resume.step < 190 and relaunch.resume.step % 20 == 0
    assert first_step(supervised, 2) == relaunch.resume.step + 5
    assert not list((supervised.work / "out").glob("*.json"))


def test_a_person_rolls_a_script_back_to_a_checkpoint_of_its_own(supervised: Supervised) -> None:
    supervised.configure(FOREIGN)
    supervised.environment["STEP_S"] = "0.2"
    supervised.start(*torchrun(UNMODIFIED, "--folders", "--steps=400"))
    supervised.until(
        "a checkpoint of step 60", lambda: (supervised.status["last_checkpoint"] or {}).get("step", 0) >= 60
    )
    supervised.order("rollback", "--to", "45")
    supervised.wait_for_attempt(2)
    supervised.until("a step of attempt 2", lambda: supervised.steps(2))

    assert first_step(supervised, 2) == 45

    supervised.rank(1).send(signal.SIGKILL)
    supervised.wait_for_attempt(3)
    supervised.until("a step of attempt 3", lambda: supervised.steps(3))
    assert first_step(supervised, 3) <= max(supervised.steps(2)) + 5
    supervised.order("stop")
    assert supervised.end() == 130, supervised.output


def test_a_killed_rank_is_relaunched_from_the_newest_checkpoint_that_the_script_has_left(
    supervised: Supervised,
) -> None:
    supervised.configure(RESUMING)
    supervised.environment["STEP_S"] = "0.05"
    supervised.start(*torchrun(UNMODIFIED))
    supervised.wait_for_step(70)
    supervised.rank(1).send(signal.SIGKILL)

    assert supervised.end() == 0, supervised.output

    rows = [row for row in inspection.step_rows(supervised.folder) if row.attempt == 2]
    assert rows[0].step > 60 and rows[0].step % 5 == 0
    assert rows[-1].step == 200
    assert rows[-1].loss == pytest.approx(2.0)
    assert len(supervised.launches()) == 2


def test_a_plain_command_is_supervised_to_its_good_end(supervised: Supervised) -> None:
    assert supervised.run("sh", "-c", "echo one; sleep 1; echo two") == 0

    assert "two" in supervised.output
    assert supervised.status["outcome"]["reason"] == "completed"
    assert supervised.processes() == []


def test_the_exit_code_of_a_plain_command_that_fails_is_told(supervised: Supervised) -> None:
    supervised.configure("[policy]\nbackoff_s = 0.1\n")

    assert supervised.run("sh", "-c", "echo starting; exit 17") == 3

    assert "17" in supervised.output
    assert len(supervised.launches()) <= 2


def test_a_command_that_falls_silent_is_found_hung_and_launched_again(supervised: Supervised) -> None:
    supervised.configure("[detection]\nsilence_s = 3\n")
    script = supervised.work / "silent.py"
    script.write_text(
        "import pathlib, time\n"
        "print('begun', flush=True)\n"
        "again = pathlib.Path('again')\n"
        "if not again.exists():\n"
        "    again.touch()\n"
        "    time.sleep(3600)\n"
    )

    assert supervised.run(sys.executable, str(script)) == 0, supervised.output

    assert "no output for" in supervised.output
    (incident,) = supervised.story["incidents"]
    assert incident["kind"] == "hang"
    stacks = list((supervised.folder / "incidents" / "0001").glob("stacks-rank-0*"))
    assert any("silent.py" in stack.read_text() for stack in stacks)


def test_modules_in_the_working_folder_are_not_taken_for_those_of_python(supervised: Supervised) -> None:
    """The agent works there, and `python -m` would import them."""
    for name in ("argparse", "queue", "random", "ssl"):
        (supervised.work / f"{name}.py").write_text("raise SystemExit('the wrong module was imported')\n")

    assert supervised.run("sh", "-c", "true") == 0, supervised.output

    assert supervised.ask("status").returncode == 0
