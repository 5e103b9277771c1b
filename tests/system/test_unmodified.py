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
