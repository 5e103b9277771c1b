# SPDX-License-Identifier: Apache-2.0
"""Being stopped: the step is finished, a checkpoint committed, nothing left behind, and the run goes on from there."""

from __future__ import annotations

import signal
import sys

import pytest

from supervisor.core.api import events
from tests.system.supervised import SCRIPTS, Supervised, torchrun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

COUNTING = SCRIPTS / "counting.py"
GPT = SCRIPTS / "paced_gpt.py"
MODEL = ("--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--batch", "4", "--save-every", "1000")


def test_sigterm_saves_the_step_that_was_done_and_the_next_run_begins_behind_it(supervised: Supervised) -> None:
    command = torchrun(GPT, *MODEL, "--steps", "150")
    supervised.environment["STEP_S"] = "0.05"
    supervised.start(*command)
    supervised.wait_for_step(20)

    supervised.signal(signal.SIGTERM)

    assert supervised.end() == 143, supervised.output
    assert supervised.processes() == []
    assert not supervised.shared_memory().exists()
    last = supervised.steps(1)[-1]
    assert f"the newest committed checkpoint is of step {last}" in supervised.output
    assert supervised.run(*command) == 0, supervised.output
    restored = supervised.events(events.AttemptRestored)
    assert [each.step for each in restored] == [None, last]
    assert supervised.steps(2)[0] == last + 1
    assert supervised.processes() == []
    assert not supervised.shared_memory().exists()


@pytest.mark.parametrize(("ask", "code"), [("ctrl-c", 130), ("stop", 130)])
def test_a_person_who_stops_the_run_gets_130_and_no_process_is_left(
    supervised: Supervised, ask: str, code: int
) -> None:
    supervised.start(sys.executable, str(COUNTING), "--steps", "100000")
    supervised.wait_for_step(10)

    if ask == "stop":
        supervised.order("stop")
    else:
        supervised.signal(signal.SIGINT)

    assert supervised.end() == code, supervised.output
    assert supervised.processes() == []
    assert not supervised.shared_memory().exists()
    assert supervised.status["outcome"]["reason"] == "ExternalStop"


def test_a_second_ctrl_c_does_not_wait_for_ranks_that_do_not_leave(supervised: Supervised) -> None:
    supervised.configure("[policy]\nfinish_grace_s = 1000\nstop_grace_s = 1000\n")
    supervised.start(sys.executable, str(COUNTING), "--steps", "100000", "--deaf")
    supervised.wait_for_step(10)

    supervised.signal(signal.SIGINT)
    supervised.wait_for_output("finish the step")
    supervised.signal(signal.SIGINT)

    assert supervised.end() == 130, supervised.output
    assert "told twice: stopping at once" in supervised.output
    assert supervised.processes() == []


def test_a_stop_before_the_first_step_leaves_nothing_behind(supervised: Supervised) -> None:
    supervised.start(*torchrun(COUNTING, "--fail", "hang"))
    supervised.wait_for_attempt(1)

    supervised.signal(signal.SIGTERM)

    assert supervised.end() == 143, supervised.output
    assert supervised.processes() == []
    assert not supervised.shared_memory().exists()
