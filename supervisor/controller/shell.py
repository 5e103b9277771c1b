# SPDX-License-Identifier: Apache-2.0
"""The loop around the core: observe, advance, journal, then hand the decisions on.

One thread owns the state and one queue feeds it, so there are no locks. A decision runs only after its event is on
disk, and an agent's report is acknowledged only after what it meant is on disk, so a controller that dies at any moment
loses nothing. Effects run on a worker thread and are repeated until their event arrives; a bug in here ends the
process, never the training.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from supervisor.agent import api as agent
from supervisor.controller.api import ControllerError, JournalRecord, RunView
from supervisor.controller.disk import Disk
from supervisor.controller.effects_thread import EffectsThread, outcome_of
from supervisor.controller.inbox import EffectDone, Item, Ordered, Reported, WorkDone
from supervisor.controller.journal import Journal, JournalFullError
from supervisor.controller.monitor import Monitor
from supervisor.controller.seen import HealthChanged, Noticed, Told, UriLearned
from supervisor.controller.steps_file import StepsFile
from supervisor.core.accounting import Ledger
from supervisor.core.api import (
    LIVE_PHASES,
    Checkpoint,
    OrderKind,
    Outcome,
    Phase,
    Policy,
    RunState,
    Severity,
    advance,
    decisions,
    encode,
    events,
    outstanding,
)

TICK_S = 1.0
LEAST_TICK_S = 0.5
"""A tick follows the agents' reports, so that a hang is judged by fresh ones; but never sooner than this."""
REPEAT_S = 10.0
"""A decision whose event has not arrived is carried out again after so long."""
LOOK_AFTER_S = 5.0
"""Between looks at whether the agents live, while an attempt may."""
ACKNOWLEDGE_S = 30.0
GOING_BACK = frozenset({OrderKind.ROLLBACK, OrderKind.SKIP})
"""Orders for which the store is asked what it holds."""
HELD_PHASES = frozenset({Phase.LAUNCHING, Phase.DIAGNOSING, Phase.PROBING, Phase.WAITING})
"""Phases that wait for room on a full disk, whatever their deadline: nothing trains, and nothing can be launched."""
SLEPT_S = 15.0
"""Between two ticks: the machine slept, the clock was set, or a disk was full; nobody watched meanwhile."""


class Effects(Protocol):
    """The outside world. Calls come from one worker thread; an event that is returned goes back to the core."""

    def carry_out(self, decision: decisions.Decision, state: RunState) -> events.Event | None: ...

    def learn_uri(self, uri: str) -> None:
        """Where the run's checkpoints are."""

    def mark_health(self, state: RunState, healthy: bool) -> None: ...

    def stored(self) -> tuple[Checkpoint, ...] | None:
        """The checkpoints that the store holds, oldest first; None when it cannot be asked. From any thread."""

    def look_after_agents(self) -> None:
        """Start again agents that are gone; called every few seconds while an attempt may be alive."""


class Display(Protocol):
    def told(self, at: float, severity: Severity, text: str, incident: int) -> None: ...

    def progress(self, view: RunView) -> None: ...


class Shell:
    """Runs one run to its end. `state` comes from the journal; None for a run that is yet to be submitted."""

    def __init__(
        self,
        *,
        state: RunState | None,
        policy: Policy,
        ledger: Ledger,
        journal: Journal,
        monitor: Monitor,
        effects: Effects,
        display: Display,
        steps: StepsFile,
        disk: Disk,
        controller: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._policy = policy
        self._ledger = ledger
        self._journal = journal
        self._monitor = monitor
        self._effects = effects
        self._display = display
        self._steps = steps
        self._disk = disk
        self._controller = controller
        self._clock = clock
        self._inbox: queue.Queue[Item] = queue.Queue()
        self._worker = EffectsThread(effects.carry_out, self._inbox)
        self._complaints: dict[str, str] = {}
        self._sequences: dict[str, int] = {}
        self._look_after_at = 0.0
        self._ticked_at = 0.0
        self._stop_signals = 0
        self._has_fresh_ranks = False
        self._is_full_told = False
        self._has_held = False

    @property
    def state(self) -> RunState:
        """Of the run; there is one as soon as `run` has taken its first event."""
        if self._state is None:
            raise ValueError("the run has not been submitted yet; try again")
        return self._state

    def put(self, event: events.Event) -> None:
        """From any thread or signal handler."""
        if isinstance(event, events.StopSignalled):
            self._stop_signals += 1
        self._inbox.put(event)

    def take_reports(self, node: str, batch: agent.ReportBatch, reports: tuple[agent.Report, ...]) -> None:
        reported = Reported(node, batch.agent, batch.sequence, reports)
        self._inbox.put(reported)
        if not reported.done.wait(ACKNOWLEDGE_S):
            raise ValueError("the controller is busy; send the reports again")

    def take_order(self, raw: dict[str, Any]) -> dict[str, Any]:
        order = _decode_order(raw, self._clock())
        stored = self._effects.stored() if order.order in GOING_BACK else None
        ordered = Ordered(replace(order, checkpoints=stored))
        self._inbox.put(ordered)
        try:
            return {"answer": ordered.answer.get(timeout=ACKNOWLEDGE_S)}
        except queue.Empty:
            raise ValueError("the controller is busy; ask `supervisor status` whether the order arrived") from None

    def view(self) -> dict[str, Any]:
        encoded: dict[str, Any] = encode(self.make_view(self._clock()))
        return encoded

    def make_view(self, at: float) -> RunView:
        account = self._ledger.account(at)
        return RunView(
            at=at,
            state=self.state,
            numbers=self._monitor.numbers(),
            ettr=account.ettr,
            mttr_s=account.mttr_s,
            incidents=len(account.incidents),
            interventions=account.interventions,
            controller=self._controller,
            folder=str(self._disk.folder),
        )

    def run(self, first: Iterable[events.Event]) -> Outcome:
        """Feed `first`, then everything that comes, until the run is over."""
        self._worker.start()
        for event in first:
            self._advance(event)
        self._repeat_outstanding(self._clock())
        while not self.state.is_final:
            wait_s = max(0.0, min(TICK_S, self._ticked_at + TICK_S - self._clock()))
            with contextlib.suppress(queue.Empty):
                self._take(self._inbox.get(timeout=wait_s))
            now = self._clock()
            if not 0.0 <= now - self._ticked_at < (LEAST_TICK_S if self._has_fresh_ranks else TICK_S):
                slept = self._ticked_at > 0.0 and now - self._ticked_at > SLEPT_S
                self._ticked_at, self._has_fresh_ranks = now, False
                if slept:
                    self._advance(events.ControllerReturned(now))
                self._tick(now)
        self._worker.stop(ACKNOWLEDGE_S)
        assert self.state.outcome is not None
        return self.state.outcome

    def _take(self, item: Item) -> None:
        match item:
            case Reported():
                self._on_reported(item)
            case Ordered():
                said = self._advance(item.order)
                item.answer.put([d.text for d in said if isinstance(d, decisions.Notify)])
            case EffectDone():
                self._worker.done(item.decision)
                if item.event is not None:
                    self._advance(item.event)
            case WorkDone():
                self._on_work_done(item)
            case _:
                self._advance(item)

    def _on_reported(self, batch: Reported) -> None:
        """A batch that an agent sent twice, since the first answer was late, counts once."""
        if batch.sequence > self._sequences.get(batch.sender, -1):
            for report in batch.reports:
                if isinstance(report, agent.StepsSeen):
                    self._steps.append(report.attempt, self._monitor.fresh_rows(report))
                self._notice(self._monitor.take(batch.node, report, self._clock()))
                self._has_fresh_ranks |= isinstance(report, agent.RanksPolled)
            self._sequences[batch.sender] = batch.sequence
        batch.done.set()

    def _notice(self, noticed: Iterable[Noticed]) -> None:
        for item in noticed:
            match item:
                case Told():
                    self._display.told(self._clock(), item.severity, item.text, 0)
                case UriLearned():
                    # On this thread, so that it is on disk before the report is acknowledged.
                    self._inbox.put(
                        outcome_of("learning where checkpoints are", partial(self._effects.learn_uri, item.uri))
                    )
                case HealthChanged():
                    mark = partial(self._effects.mark_health, self.state, item.healthy)
                    self._worker.put("telling the ranks their loss health", mark)
                case _:
                    self._advance(item)

    def _advance(self, event: events.Event) -> tuple[decisions.Decision, ...]:
        """One event: nothing of it counts before it is on disk."""
        before = self._state
        after, made = advance(before, event, self._policy)
        if after == before and not made:
            return made
        self._write(JournalRecord(event.at, event, made))
        self._state = after
        self._ledger.observe(before, event, after, made)
        for decision in made:
            if isinstance(decision, decisions.Notify):
                self._display.told(event.at, decision.severity, decision.text, decision.incident)
            else:
                self._ask(decision)
        return made

    def _write(self, record: JournalRecord) -> None:
        """A full disk stops the controller from acting, never the training: it waits here until the line is on disk.

        Raises ControllerError when it is told twice to stop meanwhile: it leaves, and whatever runs goes on.
        """
        told = False
        while True:
            try:
                self._journal.append(record)
            except JournalFullError as error:
                if not told:
                    text = f"{error}; nothing is decided until it can be; training goes on"
                    self._display.told(self._clock(), Severity.URGENT, text, 0)
                told = True
                if error.is_for_want_of_room:
                    self._disk.note_refused_write(self._clock())
                    self._tell_full()
                if self._stop_signals >= 2:
                    text = f"{error}; left as it is: free space, then the same command takes over what runs"
                    raise ControllerError(text) from None
                time.sleep(TICK_S)
            else:
                return

    def _tick(self, now: float) -> None:
        self._notice(self._monitor.poll(self.state, now))
        self._look_at_disk(now)
        if now >= self.state.deadline:
            self._pass_deadline(now)
        self._repeat_outstanding(now)
        if self.state.phase in LIVE_PHASES and now >= self._look_after_at:
            self._look_after_at = now + LOOK_AFTER_S
            self._worker.put("looking after the agents", self._effects.look_after_agents)
        if self.state.phase in LIVE_PHASES or self.state.phase is Phase.WAITING:
            self._display.progress(self.make_view(now))

    def _look_at_disk(self, now: float) -> None:
        if self._disk.look(now):
            self._tell_full()
            return
        if self._is_full_told:
            self._is_full_told = False
            self._display.told(now, Severity.NOTE, f"the disk of {self._disk.folder} has room again; going on", 0)
        if self._has_held:
            self._has_held = False
            # What could not be done for want of room gets its full time again.
            self._advance(events.ControllerReturned(now))

    def _tell_full(self) -> None:
        """Once, until there is room again."""
        if self._is_full_told:
            return
        self._is_full_told = True
        text = (
            f"the disk of {self._disk.folder} is full: a rank that prints or saves there fails, and nothing is "
            "launched; free space on it or raise its quota; the run waits for that and goes on by itself"
        )
        self._display.told(self._clock(), Severity.URGENT, text, 0)

    def _pass_deadline(self, now: float) -> None:
        if self._disk.is_full and self.state.phase in HELD_PHASES:
            self._has_held = True
        else:
            self._advance(events.TimePassed(now))

    def _repeat_outstanding(self, now: float) -> None:
        for decision in outstanding(self.state):
            if self._worker.asked_s_ago(decision, now) >= REPEAT_S:
                self._ask(decision)

    def _ask(self, decision: decisions.Decision) -> None:
        self._worker.ask(decision, self.state, self._clock())

    def _on_work_done(self, done: WorkDone) -> None:
        """The same complaint is told once until the same work succeeds."""
        if done.error is not None and self._complaints.get(done.what) != done.error:
            self._display.told(self._clock(), Severity.WARNING, done.error, self.state.incident)
        self._complaints[done.what] = done.error or ""


def _decode_order(raw: dict[str, Any], at: float) -> events.OrderGiven:
    from supervisor.core.api import decode

    return decode(events.OrderGiven, {**raw, "at": at})
