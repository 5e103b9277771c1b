# SPDX-License-Identifier: Apache-2.0
"""What people may order and grant: pause, resume, rollback, skip, freeze, approve; each counts as an intervention."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from supervisor.agent import processes
from supervisor.core.api import BatchRange, events
from tests.system.supervised import SCRIPTS, Supervised, torchrun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

COUNTING = SCRIPTS / "counting.py"
LONG = (sys.executable, str(COUNTING), "--steps", "100000")
GPT = SCRIPTS / "paced_gpt.py"
MODEL = ("--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--batch", "4", "--save-every", "20")


def finish(supervised: Supervised) -> None:
    supervised.order("stop")
    assert supervised.end() == 130, supervised.output


def test_paused_it_saves_and_waits_and_resumed_it_goes_on_behind_the_last_step(supervised: Supervised) -> None:
    supervised.environment["STEP_S"] = "0.05"
    supervised.start(*torchrun(GPT, *MODEL, "--steps", "100"))
    supervised.wait_for_step(15)

    supervised.order("pause", "--why", "maintenance of the racks")
    supervised.until("it waits", lambda: supervised.status["phase"] == "WAITING")
    paused = supervised.status
    assert paused["waiting_for"] == "a person"
    assert paused["last_checkpoint"]["step"] == paused["step"] == supervised.steps(1)[-1]
    assert supervised.ranks() == []
    supervised.order("resume")

    assert supervised.end() == 0, supervised.output
    assert supervised.steps(2)[0] == paused["step"] + 1
    assert supervised.status["interventions"] == 2
    assert supervised.status["incidents"] == 0
    assert "maintenance of the racks" in supervised.order("story")


def test_a_rollback_goes_to_the_step_that_was_named_and_a_skip_leaves_the_batches_out(
    supervised: Supervised, tmp_path: Path
) -> None:
    pace = tmp_path / "pace"
    supervised.environment |= {"STEP_S": "0.1", "PACE": str(pace)}
    supervised.start(*torchrun(GPT, *MODEL, "--save-every", "30", "--steps", "120"))
    supervised.until("the first checkpoint", lambda: supervised.events(events.CheckpointCommitted))
    supervised.wait_for_step(45)

    # An order takes seconds to arrive where the machine is busy, and the steps are to be there when it does.
    pace.write_text("1.0")
    supervised.order("rollback", "--to", "35")
    pace.write_text("0.5")
    supervised.wait_for_attempt(2)
    supervised.wait_for_step(40, attempt=2)
    supervised.order("skip", "70-74")
    pace.write_text("0.0")

    assert supervised.end() == 0, supervised.output
    restored = [each.step for each in supervised.events(events.AttemptRestored)]
    assert restored[:2] == [None, 30] and restored[2] >= 40
    assert supervised.launches()[-1].skipped == (BatchRange(70, 74),)
    assert supervised.positions(3)[-1] == 124
    assert not {70, 71, 72, 73, 74} & set(supervised.positions(3))
    assert supervised.status["skipped"] == [[70, 74]]
    assert supervised.status["interventions"] == 2


def test_what_cannot_be_done_is_refused_with_the_reason_and_nothing_happens(supervised: Supervised) -> None:
    supervised.start(*LONG)
    supervised.wait_for_step(5)

    for words, why in (
        (("rollback", "--to", "3"), "refused: no committed checkpoint at or before step 3"),
        (("resume",), "refused: nothing to resume"),
        (("approve",), "refused: nothing waits for approval"),
    ):
        answer = supervised.ask(*words)
        assert answer.returncode == 2 and why in answer.stdout
    assert supervised.ask("skip", "9-3").returncode == 2
    finish(supervised)

    assert len(supervised.launches()) == 1
    late = supervised.ask("pause")
    assert late.returncode == 2 and "is over, so there is nothing to pause" in late.stderr


def test_frozen_nothing_is_launched_until_it_is_thawed(supervised: Supervised) -> None:
    supervised.start(*LONG)
    supervised.wait_for_step(5)
    supervised.order("freeze")
    (script,) = (each for each in supervised.processes() if processes.command_line(each.pid)[:2] == list(LONG[:2]))
    processes.send(script.identity, signal.SIGKILL)

    supervised.until("it waits for a person", lambda: supervised.status["waiting_for"] == "a person")
    assert supervised.status["frozen"] and supervised.ranks() == []
    assert len(supervised.launches()) == 1
    supervised.order("thaw")
    supervised.wait_for_step(20, attempt=2)

    finish(supervised)
    assert supervised.status["interventions"] == 3


def test_an_adviser_says_what_it_would_do_and_does_it_when_that_is_approved(supervised: Supervised) -> None:
    failing = ("--fail", "kill", "--at", "20", "--once", "killed")
    supervised.start(*LONG, *failing, options=("--mode", "advise"))

    proposal = supervised.until("it proposes", lambda: supervised.status["proposal"])
    assert proposal.startswith("relaunch as attempt 2")
    assert "`supervisor approve` does it" in supervised.output
    supervised.order("approve")
    supervised.wait_for_step(10, attempt=2)

    finish(supervised)
    assert supervised.status["interventions"] == 2


def test_an_observer_tells_of_a_hang_and_stops_nothing(supervised: Supervised) -> None:
    supervised.start(*torchrun(COUNTING, "--steps", "100000"), options=("--mode", "observe"))
    supervised.wait_for_step(100)
    ranks = supervised.ranks()

    for rank in ranks:
        rank.send(signal.SIGSTOP)
    supervised.until("the hang is told", lambda: supervised.status["open_incident"])
    assert "only watching: nothing is stopped" in supervised.output
    told_at = time.monotonic()
    while time.monotonic() < told_at + 3:
        assert supervised.ranks() == ranks
    for rank in ranks:
        rank.send(signal.SIGCONT)

    supervised.until("the suspicion is withdrawn", lambda: supervised.status["open_incident"] is None)
    assert supervised.ranks() == ranks
    finish(supervised)
    assert len(supervised.launches()) == 1


def test_status_and_story_tell_the_same_while_it_runs_and_when_it_is_over(supervised: Supervised) -> None:
    running = supervised.start(*LONG)
    supervised.wait_for_step(30)

    during = supervised.status
    assert (during["run"], during["phase"], during["attempt"]) == ("run", "TRAINING", 1)
    assert during["step"] >= 30 and during["loss"] < 3
    assert during["controller"].startswith(f"pid {running.pid} on ")
    assert during["outcome"] is None
    finish(supervised)

    after = supervised.status
    assert after["phase"] == "ABANDONED" and after["controller"] is None
    assert after["outcome"]["reason"] == "ExternalStop"
    story = supervised.story
    assert [attempt["attempt"] for attempt in story["attempts"]] == [1]
    assert "-> launch attempt 1" in supervised.order("story")
