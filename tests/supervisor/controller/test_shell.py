# SPDX-License-Identifier: Apache-2.0
"""The loop around the core, with fakes for the outside world and a real journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.agent import api as agent
from supervisor.controller.api import ControllerError
from supervisor.controller.disk import Disk
from supervisor.controller.journal import Journal, read_journal, replay
from supervisor.controller.monitor import Monitor
from supervisor.controller.shell import Shell
from supervisor.controller.steps_file import StepsFile, read_steps
from supervisor.core import codec
from supervisor.core.accounting import Ledger
from supervisor.core.api import (
    Action,
    Category,
    Checkpoint,
    OrderKind,
    Outcome,
    Phase,
    Policy,
    RunState,
    Verdict,
    decisions,
    events,
)
from supervisor.detection.api import HangPolicy
from tests.fakes import FakeDisplay, FakeEffects

NODE = "node-0"
RESTART = Verdict("NodeFailure", Category.INFRASTRUCTURE, Action.RESTART_SAME)
BUG = Verdict("TypeError", Category.SCRIPT, Action.FIX_USER, "a string was added", "mend line 3")


class SetClock:
    """The real time, unless a test has set another."""

    now: float | None = None

    def __call__(self) -> float:
        return time.time() if self.now is None else self.now


class Running:
    """A shell on a thread of its own, and the parts that it was given."""

    def __init__(
        self,
        folder: Path,
        state: RunState | None = None,
        *,
        disk: Disk | None = None,
        **answers: list[events.Event | Exception | None],
    ):
        self.effects = FakeEffects(answers)
        self.display = FakeDisplay()
        self.path = folder / "journal"
        self.steps = folder / "steps.csv"
        self._journal = Journal(self.path)
        self._steps_file = StepsFile(self.steps)
        self.clock = SetClock()
        self.shell = Shell(
            state=state,
            policy=Policy(),
            ledger=Ledger(),
            journal=self._journal,
            monitor=Monitor(HangPolicy(), 1),
            effects=self.effects,
            display=self.display,
            steps=self._steps_file,
            disk=disk or Disk(folder),
            controller="test",
            clock=self.clock,
        )
        self.outcome: Outcome | None = None
        self.error: ControllerError | None = None
        self._sequence = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        first = (
            events.ControllerReturned(time.time()) if self.shell._state else events.RunSubmitted(time.time(), "demo", 1)
        )
        try:
            self.outcome = self.shell.run([first])
        except ControllerError as error:
            self.error = error

    def start(self) -> Running:
        self._thread.start()
        return self

    def report(self, *reports: agent.Report, sequence: int | None = None) -> None:
        """As an agent does; returns when the reports are on disk."""
        self._sequence = self._sequence + 1 if sequence is None else sequence
        batch = agent.ReportBatch(1, NODE, "agent-1", self._sequence, 1, True, ())
        self.shell.take_reports(NODE, batch, reports)

    def join(self) -> None:
        self._thread.join(30)
        self._steps_file.close()
        self._journal.close()

    def journalled(self) -> list[str]:
        return [type(record.event).__name__ for record in read_journal(self.path)]

    def is_told(self, text: str) -> bool:
        return any(text in line for line in self.display.lines)

    def until_looked(self, at: float) -> None:
        """Wait for the display that a look at that time ends with."""
        self.until(lambda: bool(self.display.views) and self.display.views[-1].at >= at)

    def end(self) -> Outcome:
        self.join()
        assert self.outcome is not None, "the shell did not end"
        return self.outcome

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = threading.Event()
        for _ in range(3000):
            if holds():
                return
            deadline.wait(0.01)
        raise AssertionError(f"not reached; decisions: {self.effects.carried_out}")

    def is_frozen(self) -> bool:
        return self.shell.state.frozen

    def carried_out(self) -> list[str]:
        return [type(each).__name__ for each in self.effects.carried_out]


def step(number: int, attempt: int = 1) -> agent.StepsSeen:
    return agent.StepsSeen(
        attempt, time.time(), "client", (agent.StepRow(number, number - 1, time.time() + number / 10, 2.5, 1.0, 10),)
    )


def ended(exit_code: int, attempt: int = 1) -> agent.AttemptEnded:
    return agent.AttemptEnded(attempt, time.time(), exit_code, (), by_us=False)


def test_a_run_that_goes_well_is_launched_watched_and_released(tmp_path: Path) -> None:
    run = Running(tmp_path).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False))
    run.report(step(1), step(2))
    run.report(ended(0))
    assert run.end().exit_code == 0
    assert run.carried_out() == ["Launch", "Release"]
    assert [row.step for row in read_steps(run.steps)] == [1, 2]


def test_a_failure_is_diagnosed_and_relaunched(tmp_path: Path) -> None:
    run = Running(tmp_path, Diagnose=[events.Diagnosed(time.time(), 1, RESTART)]).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False), step(1), step(2))
    run.report(ended(1))
    run.until(lambda: run.carried_out().count("Launch") == 2)
    run.report(step(3, attempt=2), ended(0, attempt=2))
    assert run.end().exit_code == 0
    assert run.carried_out() == ["Launch", "Diagnose", "Launch", "Release"]


def test_a_script_error_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    run = Running(tmp_path, Diagnose=[events.Diagnosed(time.time(), 1, BUG)]).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False), ended(1))
    outcome = run.end()
    assert outcome.exit_code == 3
    assert "mend line 3" in outcome.text
    assert any("mend line 3" in line for line in run.display.lines)


def test_what_a_report_means_is_on_disk_when_it_is_acknowledged(tmp_path: Path) -> None:
    run = Running(tmp_path).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False))
    run.report(step(1))
    kinds = [type(record.event).__name__ for record in read_journal(run.path)]
    assert kinds == ["RunSubmitted", "AttemptStarted", "ProgressSampled"]
    run.report(ended(0))
    run.end()


def test_a_batch_that_is_sent_twice_counts_once(tmp_path: Path) -> None:
    run = Running(tmp_path).start()
    run.report(step(1), sequence=1)
    run.report(step(1), sequence=1)
    run.report(ended(0), sequence=2)
    run.end()
    assert [row.step for row in read_steps(run.steps)] == [1]


def test_an_effect_that_fails_is_told_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.controller.shell.REPEAT_S", 0.05)
    monkeypatch.setattr("supervisor.controller.shell.TICK_S", 0.02)
    away: list[events.Event | Exception | None] = [OSError("the scheduler is away"), OSError("the scheduler is away")]
    run = Running(tmp_path, Launch=away).start()
    run.until(lambda: run.carried_out().count("Launch") >= 3)
    run.report(agent.AttemptBegan(1, time.time(), 9, False), ended(0))
    run.end()
    assert len([line for line in run.display.lines if "the scheduler is away" in line]) == 1


def test_a_returning_controller_asks_again_for_what_is_outstanding_and_launches_nothing_else(tmp_path: Path) -> None:
    first = Running(tmp_path, Diagnose=[None]).start()
    first.report(agent.AttemptBegan(1, time.time(), 9, False), step(1), ended(1))
    first.until(lambda: "Diagnose" in first.carried_out())
    state, _ = replay(read_journal(first.path))
    assert state is not None
    assert state.phase is Phase.DIAGNOSING
    second = Running(tmp_path, state, Diagnose=[events.Diagnosed(time.time(), 1, BUG)]).start()
    assert second.end().exit_code == 3
    assert second.carried_out()[0] == "Diagnose"
    first.shell.put(events.Diagnosed(time.time(), 1, BUG))
    first.end()


def test_a_full_disk_stops_decisions_but_not_the_wait_for_space(tmp_path: Path, full_disk: Path) -> None:
    run = Running(full_disk).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False))
    ballast = full_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(b"x" * 2**21)
    long_winded = codec.encode(events.OrderGiven(0.0, OrderKind.FREEZE, "kim", "x" * 5000))
    ordering = threading.Thread(target=run.shell.take_order, args=(long_winded,))
    ordering.start()
    run.until(lambda: any("nothing is decided until" in line for line in run.display.lines))
    assert not run.is_frozen()
    ballast.unlink()
    ordering.join(30)
    assert run.is_frozen()
    run.report(ended(0))
    assert run.end().exit_code == 0


def test_a_person_is_answered_and_counted(tmp_path: Path) -> None:
    run = Running(tmp_path).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False), step(1))
    order = events.OrderGiven(0.0, OrderKind.FREEZE, "kim", "maintenance")
    answer: dict[str, Any] = run.shell.take_order(codec.encode(order))
    assert any("kim ordered freeze: maintenance" in line for line in answer["answer"])
    view = run.shell.view()
    assert view["interventions"] == 1
    run.report(ended(0))
    run.end()


def test_an_order_that_goes_back_asks_the_store_what_it_still_holds(tmp_path: Path) -> None:
    run = Running(tmp_path).start()
    run.effects.checkpoints = (Checkpoint(40, 1),)
    committed = {"event": "committed", "step": 20, "checkpoint_attempt": 1}
    run.report(agent.AttemptBegan(1, time.time(), 9, False), agent.CheckpointFact(1, time.time(), committed), step(50))
    order = events.OrderGiven(0.0, OrderKind.ROLLBACK, "kim", step=25)
    (_, refused) = run.shell.take_order(codec.encode(order))["answer"]
    assert "no committed checkpoint at or before step 25; known steps: 40" in refused
    run.report(ended(0))
    run.end()


def test_two_polite_signals_stop_at_once(tmp_path: Path) -> None:
    run = Running(tmp_path).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False), step(1))
    run.shell.put(events.StopSignalled(time.time(), "SIGINT"))
    run.until(lambda: "Finish" in run.carried_out())
    run.shell.put(events.StopSignalled(time.time(), "SIGINT"))
    run.until(lambda: "Stop" in run.carried_out())
    stop = run.effects.carried_out[-1]
    assert isinstance(stop, decisions.Stop)
    assert stop.grace_s == 0.0
    run.report(agent.AttemptEnded(1, time.time(), None, (), by_us=True))
    assert run.end().exit_code == 130


def test_agents_are_looked_after_while_an_attempt_may_be_alive(tmp_path: Path) -> None:
    """A failure of that is told and tried again; it does not end the thread that carries everything out."""
    run = Running(tmp_path, look_after_agents=[OSError("no such host")]).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False))
    run.report(step(1))
    run.until(lambda: run.effects.looks >= 1)
    run.until(lambda: any("looking after the agents failed: no such host" in line for line in run.display.lines))
    run.report(ended(0))
    assert run.end().exit_code == 0
    assert run.carried_out() == ["Launch", "Release"]


def test_work_that_fails_beside_the_decisions_leaves_the_supervisor_able_to_act(tmp_path: Path) -> None:
    run = Running(tmp_path, learn_uri=[OSError("disk away")]).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False))
    run.report(agent.CheckpointFact(1, time.time(), {"event": "opened", "uri": "/checkpoints"}), step(1))
    run.until(lambda: any("disk away" in line for line in run.display.lines))
    run.report(ended(0))
    assert run.end().exit_code == 0
    assert run.carried_out() == ["Launch", "Release"]


def test_two_signals_end_a_controller_that_waits_for_a_full_disk_and_leave_the_training(
    tmp_path: Path, full_disk: Path
) -> None:
    run = Running(full_disk).start()
    run.report(agent.AttemptBegan(1, time.time(), 9, False))
    with pytest.raises(OSError, match="No space left"):
        (full_disk / "ballast").write_bytes(b"x" * 2**21)
    for _ in range(40):  # the journal's last page has room for some lines
        run.shell.put(events.OrderGiven(time.time(), OrderKind.FREEZE, "kim", "x" * 500))
    run.until(lambda: any("nothing is decided until" in line for line in run.display.lines))
    run.shell.put(events.StopSignalled(time.time(), "SIGINT"))
    run.shell.put(events.StopSignalled(time.time(), "SIGINT"))
    run.join()
    assert isinstance(run.error, ControllerError)
    assert "takes over what runs" in str(run.error)
    assert "Stop" not in run.carried_out()


def test_a_controller_that_slept_gives_every_phase_its_time_again(tmp_path: Path) -> None:
    run, began = Running(tmp_path), time.time()
    run.clock.now = began
    run.start()
    run.report(agent.AttemptBegan(1, began, 9, False), step(1))
    run.clock.now = began + 3600.0
    run.until(lambda: run.shell.state.deadline > began + 3600.0)
    assert "ControllerReturned" in run.journalled()
    assert run.shell.state.phase is Phase.TRAINING
    run.report(ended(0))
    run.end()


def test_on_a_full_disk_the_relaunch_waits_for_room_and_comes_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.controller.shell.TICK_S", 0.02)
    away = Verdict("S3StorageError", Category.INFRASTRUCTURE, Action.WAIT_AND_RETRY)
    free, began = [2**20], time.time()
    diagnosed = events.Diagnosed(began, 1, away)
    run = Running(tmp_path, disk=Disk(tmp_path, lambda _: free[0]), Diagnose=[diagnosed])
    run.clock.now = began
    run.start()
    run.report(agent.AttemptBegan(1, began, 9, False), step(1))
    free[0] = 0
    run.clock.now = began + 2.0
    run.report(ended(1))
    run.until(lambda: run.is_told(f"the disk of {tmp_path} is full") and run.shell.state.phase is Phase.WAITING)
    for later in (100.0, 200.0, 300.0, 400.0):
        run.clock.now = began + later
        run.until_looked(began + later)
        assert run.shell.state.phase is Phase.WAITING
    assert run.carried_out().count("Launch") == 1
    free[0] = 2**20
    run.clock.now = began + 500.0
    run.until(lambda: run.carried_out().count("Launch") == 2)
    assert len([line for line in run.display.lines if "is full" in line]) == 1
    assert run.is_told("has room again")
    run.report(agent.AttemptBegan(2, began, 9, False), agent.AttemptEnded(2, began, 0, (), by_us=False))
    assert run.end().exit_code == 0
