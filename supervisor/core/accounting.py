# SPDX-License-Identifier: Apache-2.0
"""What the journal says about time: ETTR and MTTR, and the incidents behind them.

ETTR is the time of steps that were kept over the wall time since the first submission. Queue time, start-up and every
other wait are in the denominator (`ettr`); `ettr_without_queue` leaves out the time in WAITING and from the order to
launch until the nodes start. Steps that a later attempt trains again are not kept, whatever they cost. The first
step of an attempt is recovery, not kept time, since it holds compilation.

A `Ledger` folds one event at a time at no cost that grows with the run, so that a display may ask each second.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from supervisor.core import events as e
from supervisor.core.decisions import Decision, Launch
from supervisor.core.incidents import Incident, IncidentLog
from supervisor.core.machine import advance
from supervisor.core.policy import Policy
from supervisor.core.state import RunState
from supervisor.core.transitions import newest
from supervisor.core.values import Phase, WaitFor

POINTS_REMEMBERED = 4096
"""Beyond it the older half of the curve keeps every second point, so that old steps are interpolated more coarsely."""


@dataclass(frozen=True, slots=True)
class Account:
    """The numbers of a run at one time; seconds."""

    ettr: float | None
    """0 to 1; None before the first step."""
    ettr_without_queue: float | None
    mttr_s: float | None
    """Mean of the incidents that ended with a new step."""
    mttr_median_s: float | None
    kept_s: float
    lost_s: float
    """Time of steps that were trained again or are in no checkpoint."""
    recomputed_steps: int
    wall_s: float
    queue_s: float
    incidents: tuple[Incident, ...]
    interventions: int


class Record(Protocol):
    """A line of the journal: an event, or the policy that holds from here on."""

    @property
    def event(self) -> e.Event | None: ...
    @property
    def policy(self) -> Policy | None: ...


class Curve:
    """Seconds of kept training as a function of the step, by linear interpolation between samples."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._seconds: list[float] = []

    @property
    def step(self) -> int | None:
        return self._steps[-1] if self._steps else None

    @property
    def seconds(self) -> float:
        return self._seconds[-1] if self._seconds else 0.0

    @property
    def remembered(self) -> int:
        return len(self._steps)

    def add(self, step: int, seconds: float) -> None:
        """`step` was reached after `seconds` more; a step that is not beyond the last one adds nothing."""
        if self._steps and step <= self._steps[-1]:
            return
        self._seconds.append(self.seconds + max(0.0, seconds))
        self._steps.append(step)
        if len(self._steps) > POINTS_REMEMBERED:
            half = POINTS_REMEMBERED // 2
            self._steps[:half] = self._steps[:half:2]
            self._seconds[:half] = self._seconds[:half:2]

    def until(self, step: int) -> float:
        """Seconds of the steps up to and with `step`."""
        above = bisect_right(self._steps, step)
        if above == 0:
            return 0.0
        if above == len(self._steps):
            return self.seconds
        first, last = self._steps[above - 1], self._steps[above]
        share = (step - first) / (last - first)
        return self._seconds[above - 1] + share * (self._seconds[above] - self._seconds[above - 1])

    def cut(self, step: int | None) -> tuple[int, float]:
        """Forget what lies beyond `step` (None: everything); the steps and seconds that are lost."""
        end, seconds = self.step, self.seconds
        if end is None or (step is not None and step >= end):
            return 0, 0.0
        kept = 0.0 if step is None else self.until(step)
        above = 0 if step is None else bisect_right(self._steps, step)
        lost_steps = end - (self._steps[0] - 1 if step is None or above == 0 else step)
        del self._steps[above:], self._seconds[above:]
        if above > 0 and step is not None and step > self._steps[-1]:
            self._steps.append(step)
            self._seconds.append(kept)
        return lost_steps, seconds - kept


class Ledger:
    """Folds events as the state machine takes them: `observe` each one, in order, then ask `account` at any time."""

    def __init__(self) -> None:
        self._log = IncidentLog()
        self._curve = Curve()
        self._lost_s = 0.0
        self._recomputed_steps = 0
        self._sampled_at: float | None = None
        """When the newest attempt last reached a new step."""
        self._state: RunState | None = None
        self._changed_at = 0.0
        self._queue_s = 0.0
        self._ended_at: float | None = None
        self._knows_checkpoints = False

    def observe(
        self, before: RunState | None, event: e.Event, after: RunState, decisions: Iterable[Decision] = ()
    ) -> None:
        """Raises nothing; an event that changed nothing is taken for nothing. A clock that goes back stands still."""
        self._state = after
        at = max(event.at, self._changed_at)
        if before is not None:
            self._count_queue(before, at)
            self._train(before, event, after, at)
            self._log.observe(before, event, after, decisions)
        self._changed_at = at
        self._ended_at = None if not after.is_final else self._ended_at if before and before.is_final else at

    def account(self, until: float) -> Account:
        """The numbers at `until` (unix seconds), or at the end of a run that has ended."""
        state = self._state
        until = until if self._ended_at is None else self._ended_at
        wall_s = 0.0 if state is None else max(0.0, until - state.submitted_at)
        waits = state is not None and _is_queueing(state) and self._ended_at is None
        queue_s = self._queue_s + (max(0.0, until - self._changed_at) if waits else 0.0)
        unsaved_s = self._unsaved_s()
        kept_s = self._curve.seconds - unsaved_s
        recovered = [i.recovery_s for i in self._log.incidents if i.recovery_s is not None]
        has_trained = self._curve.step is not None or self._recomputed_steps > 0
        return Account(
            ettr=_share(kept_s, wall_s) if has_trained else None,
            ettr_without_queue=_share(kept_s, wall_s - queue_s) if has_trained else None,
            mttr_s=statistics.fmean(recovered) if recovered else None,
            mttr_median_s=statistics.median(recovered) if recovered else None,
            kept_s=kept_s,
            lost_s=self._lost_s + unsaved_s,
            recomputed_steps=self._recomputed_steps,
            wall_s=wall_s,
            queue_s=queue_s,
            incidents=tuple(self._log.incidents),
            interventions=0 if state is None else state.interventions,
        )

    def _unsaved_s(self) -> float:
        """An abandoned run keeps what its newest checkpoint holds, where its checkpoints are known at all."""
        if self._state is None or self._state.phase is not Phase.ABANDONED or not self._knows_checkpoints:
            return 0.0
        saved = newest(self._state.checkpoints)
        return self._curve.seconds - (0.0 if saved is None else self._curve.until(saved.step))

    def _count_queue(self, before: RunState, at: float) -> None:
        if _is_queueing(before):
            self._queue_s += at - self._changed_at

    def _train(self, before: RunState, event: e.Event, after: RunState, at: float) -> None:
        if after.attempt != before.attempt:
            self._sampled_at = None
        match event:
            case e.AttemptRestored() if after.restored and not before.restored:
                self._cut(event.step)
            case e.ProgressSampled() if event.step is not None and after.step != before.step:
                if self._sampled_at is None:
                    self._cut(event.step - 1)
                self._curve.add(event.step, 0.0 if self._sampled_at is None else at - self._sampled_at)
                self._sampled_at = at
            case e.CheckpointCommitted():
                self._knows_checkpoints = True
            case e.Diagnosed(checkpoints=tuple()):
                self._knows_checkpoints = True
            case _:
                pass

    def _cut(self, step: int | None) -> None:
        steps, seconds = self._curve.cut(step)
        self._recomputed_steps += steps
        self._lost_s += seconds


def account(records: Iterable[Record], until: float) -> Account:
    """The numbers of a whole journal at `until`, by replaying it. Raises ValueError where `advance` does."""
    ledger = Ledger()
    policy = Policy()
    state: RunState | None = None
    for record in records:
        policy = policy if record.policy is None else record.policy
        if record.event is not None:
            after, decisions = advance(state, record.event, policy)
            ledger.observe(state, record.event, after, decisions)
            state = after
    return ledger.account(until)


def _is_queueing(state: RunState) -> bool:
    """An old attempt that has not ended yet is a stop, not a wait."""
    waits = state.phase is Phase.WAITING and state.waiting_for is not WaitFor.ENDING
    return waits or isinstance(state.pending, Launch)


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
