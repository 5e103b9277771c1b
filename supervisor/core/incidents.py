# SPDX-License-Identifier: Apache-2.0
"""Every failure and its recovery with the time of each part, folded from the events as the state machine takes them.

A failure of an attempt that made no new step supersedes the one before it: both end with the same first new step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from supervisor.core import events as e
from supervisor.core.decisions import Decision, Launch, Notify
from supervisor.core.state import RunState
from supervisor.core.values import Category, FailureKind, Phase


@dataclass(frozen=True, slots=True)
class Incident:
    """One failure and its recovery; a time is None until it happened. Times are unix seconds."""

    number: int
    kind: FailureKind
    attempt: int
    step: int | None
    detail: str
    since: float
    noticed_at: float
    reason: str | None = None
    category: Category | None = None
    stopped_at: float | None = None
    diagnosed_at: float | None = None
    probed_at: float | None = None
    launched_at: float | None = None
    started_at: float | None = None
    imported_at: float | None = None
    restored_at: float | None = None
    superseded_at: float | None = None
    """The next incident came before a new step, so this one is closed together with that one."""
    first_step_at: float | None = None
    closed_by: str | None = None
    """`new step`, `withdrawn` (it was no failure) or `run ended`; None while it is open."""
    notes: tuple[tuple[float, str], ...] = ()
    """What a person was told, and when."""

    @property
    def recovery_s(self) -> float | None:
        """From the failure to the first new step; None when there was none."""
        return None if self.first_step_at is None else max(0.0, self.first_step_at - self.since)

    def parts(self) -> dict[str, float]:
        """Seconds by part; they add up to `recovery_s`. A part whose end is not known is left out, and the next has it.

        `queue` is every wait between the diagnosis and the order to launch; `again` is spent on attempts that failed
        before they made a new step.
        """
        ends = (
            ("detect", self.noticed_at),
            ("stop", self.stopped_at),
            ("diagnose", self.diagnosed_at),
            ("probe", self.probed_at),
            ("queue", self.launched_at),
            ("start", self.started_at),
            ("import", self.imported_at),
            ("restore", self.restored_at),
            ("again" if self.superseded_at is not None else "first step", self.first_step_at),
        )
        parts: dict[str, float] = {}
        last = self.since
        for name, end in ends:
            if end is not None:
                parts[name] = max(0.0, end - last)
                last = max(last, end)
        return parts


class IncidentLog:
    """`incidents` in the order of their numbers, which count from 1."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []
        self._open: list[int] = []
        """Indices of the incidents that wait for the same first new step; the newest is the last."""

    def observe(self, before: RunState, event: e.Event, after: RunState, decisions: Iterable[Decision]) -> None:
        if after.incident > before.incident:
            self._start(event.at, after)
        if self._open:
            self._follow(before, event, after)
        for told in decisions:
            if isinstance(told, Notify) and 0 < told.incident <= len(self.incidents):
                notes = self.incidents[told.incident - 1].notes
                self._mark(told.incident - 1, notes=(*notes, (event.at, told.text)))

    def _start(self, at: float, after: RunState) -> None:
        failure = after.failure
        assert failure is not None
        if self._open:
            self._mark(self._open[-1], superseded_at=failure.since)
        self._open.append(len(self.incidents))
        self.incidents.append(
            Incident(
                number=failure.incident,
                kind=failure.kind,
                attempt=failure.attempt,
                step=failure.step,
                detail=failure.detail,
                since=failure.since,
                noticed_at=at,
            )
        )

    def _follow(self, before: RunState, event: e.Event, after: RunState) -> None:
        self._time(before, event, after)
        verdict = None if after.failure is None else after.failure.verdict
        if verdict is not None:
            self._mark(self._open[-1], reason=verdict.reason, category=verdict.category)
        if before.failure is not None and after.failure is None and isinstance(event, e.ProgressSampled):
            if before.failure.attempt == after.attempt:
                self._mark(self._open.pop(), closed_by="withdrawn")
            self._end(closed_by="new step", first_step_at=event.at)
        elif after.is_final:
            self._end(closed_by="run ended")

    def _time(self, before: RunState, event: e.Event, after: RunState) -> None:
        """The first time counts: a person may stop and launch again in the middle of a recovery."""
        launched = after.attempt > before.attempt
        started = not launched and isinstance(before.pending, Launch) and isinstance(event, e.AttemptStarted)
        happened = {
            "stopped_at": isinstance(event, e.AttemptEnded) and before != after,
            "diagnosed_at": before.phase is Phase.DIAGNOSING and after.phase is not Phase.DIAGNOSING,
            "probed_at": before.phase is Phase.PROBING and after.phase is not Phase.PROBING,
            "launched_at": launched,
            "started_at": started,
            "imported_at": after.imported and not before.imported,
            "restored_at": after.restored and not before.restored,
        }
        incident = self.incidents[self._open[-1]]
        fresh = {name: event.at for name, is_so in happened.items() if is_so and getattr(incident, name) is None}
        if fresh:
            self._mark(self._open[-1], **fresh)

    def _mark(self, index: int, **facts: object) -> None:
        self.incidents[index] = replace(self.incidents[index], **facts)  # type: ignore[arg-type]

    def _end(self, **facts: object) -> None:
        while self._open:
            self._mark(self._open.pop(), **facts)
