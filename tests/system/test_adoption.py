# SPDX-License-Identifier: Apache-2.0
"""The supervisor and its agent may die at any time: training goes on, and who comes next takes the attempt over."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from supervisor.core.api import events
from tests.system.supervised import SCRIPTS, Supervised, torchrun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

COUNTING = SCRIPTS / "counting.py"
LONG = (sys.executable, str(COUNTING), "--steps", "100000")


def last_counted(supervised: Supervised) -> int:
    """What rank 0 has told its log; nobody has to supervise for that."""
    lines = (supervised.folder / "attempts" / "0001" / "launcher.out").read_text().splitlines()
    return max((int(line.removeprefix("counted ")) for line in lines if line.startswith("counted ")), default=0)


def finish(supervised: Supervised) -> None:
    """End a run that is long enough for everything."""
    supervised.signal(signal.SIGTERM)
    assert supervised.end() == 143, supervised.output


def test_training_goes_on_without_a_supervisor_and_the_next_one_takes_it_over(supervised: Supervised) -> None:
    command = torchrun(COUNTING, "--steps", "1500")
    supervised.start(*command)
    supervised.wait_for_step(20)
    ranks = supervised.ranks()
    supervised.kill()
    unsupervised = len(supervised.rank_output(1).splitlines())
    while len(supervised.rank_output(1).splitlines()) < unsupervised + 50:
        assert supervised.ranks() == ranks

    supervised.start(*command)
    supervised.until("the new supervisor sees steps", lambda: supervised.events(events.ControllerReturned))
    supervised.wait_for_step(supervised.steps(1)[-1] + 20)

    assert supervised.ranks() == ranks
    assert supervised.end() == 0, supervised.output
    assert [launch.attempt for launch in supervised.launches()] == [1]
    assert supervised.steps(1)[-1] == 1500
    assert supervised.status["incidents"] == 0


def test_a_second_supervisor_of_a_living_run_is_refused_and_told_who_has_it(supervised: Supervised) -> None:
    first = supervised.start(*LONG)
    supervised.wait_for_step(5)

    second = supervised.ask("run", "--name", "run", "--", *LONG)

    assert second.returncode == 2
    assert f"already supervised by pid {first.pid}" in second.stderr
    assert "supervisor status" in second.stderr
    finish(supervised)


def test_another_command_cannot_take_over_what_is_still_running(supervised: Supervised) -> None:
    supervised.start(*LONG)
    supervised.wait_for_step(5)
    supervised.kill()

    other = supervised.ask("run", "--name", "run", "--", sys.executable, str(COUNTING), "--steps", "7")

    assert other.returncode == 2
    assert "still running another command" in other.stderr
    assert "--steps 100000" in other.stderr
    supervised.start(*LONG)
    supervised.until("it is taken over", lambda: supervised.events(events.ControllerReturned))
    finish(supervised)


def test_a_killed_agent_is_started_again_and_its_ranks_notice_nothing(supervised: Supervised) -> None:
    supervised.start(*torchrun(COUNTING, "--steps", "100000"))
    supervised.wait_for_step(20)
    ranks, agents = supervised.ranks(), supervised.agents()

    os.kill(agents[0], signal.SIGKILL)
    supervised.until("another agent runs", lambda: len(supervised.agents()) == 1 and supervised.agents() != agents)
    supervised.wait_for_step(supervised.steps(1)[-1] + 100)

    assert supervised.ranks() == ranks
    finish(supervised)
    assert [launch.attempt for launch in supervised.launches()] == [1]


def test_with_supervisor_and_agent_both_killed_and_a_torn_journal_the_attempt_is_still_taken_over(
    supervised: Supervised,
) -> None:
    supervised.start(*LONG)
    supervised.wait_for_step(20)
    supervised.kill()
    os.kill(supervised.agents()[0], signal.SIGKILL)
    with (supervised.folder / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"v":1,"at":17000')
    before = last_counted(supervised)

    supervised.start(*LONG)
    supervised.until("it is taken over", lambda: supervised.events(events.ControllerReturned))
    supervised.wait_for_step(before + 100)

    finish(supervised)
    assert [launch.attempt for launch in supervised.launches()] == [1]
    assert supervised.processes() == []
