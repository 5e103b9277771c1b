# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a node do: rows of steps and one status a rank.

An instrumented rank is read from its ring. Any other is judged by its output: it is idle since its log last grew.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from supervisor.agent import processes
from supervisor.agent.api import RankStatus, StepRow
from supervisor.agent.record import KnownRank
from supervisor.training.phases import LEAVING_PHASE
from supervisor.training.records import Kind, Record
from supervisor.training.ring import RingReader

_STEP_TIMES = 64
_AHEAD_STEPS = 2
_AHEAD_S = 0.5


class RingProgress:
    """Reads one rank's ring."""

    def __init__(self, ring: RingReader) -> None:
        self.ring = ring
        self.is_finished = False
        self.has_stepped = False
        self._has_begun = False
        self._times: deque[float] = deque(maxlen=_STEP_TIMES)
        self._last_step_ns = 0

    def read(self) -> list[StepRow]:
        """Rows of the steps done since the last call."""
        rows = []
        for record in self.ring.poll():
            if record.kind is Kind.STEP:
                self.has_stepped = self._has_begun = True
                self._time(record)
                rows.append(row_of(record))
            elif record.kind is Kind.RESTORED:
                self._has_begun = True
            elif record.kind is Kind.FINISHED:
                self.is_finished = True
            elif record.kind is Kind.EXCEPTION:
                self.is_finished = False
        return rows

    @property
    def step(self) -> int | None:
        """Last step done, None before the training loop has begun."""
        step = self.ring.activity().step
        return step if self._has_begun or step else None

    def median_step_s(self) -> float | None:
        return sorted(self._times)[len(self._times) // 2] if self._times else None

    def status(self, known: KnownRank, *, alive: bool, process_state: str | None) -> RankStatus:
        activity, now = self.ring.activity(), time.monotonic_ns()
        idle_s = max(0.0, (now - activity.last_ns) / 1e9)
        phase, phase_s = activity.phase, max(0.0, (now - activity.phase_since_ns) / 1e9)
        if phase is None:
            # A rank that has told its end is on its way out, which takes long where much memory is given back.
            phase, phase_s = (LEAVING_PHASE, idle_s) if self.is_finished else (None, 0.0)
        return RankStatus(
            rank=known.rank,
            local_rank=known.local_rank,
            pid=known.process.pid,
            step=self.step,
            idle_s=idle_s,
            phase=phase,
            phase_s=phase_s,
            alive=alive,
            process_state=process_state,
            dropped=self.ring.dropped,
            instrumented=True,
        )

    def _time(self, record: Record) -> None:
        if self._last_step_ns:
            self._times.append((record.monotonic_ns - self._last_step_ns) / 1e9)
        self._last_step_ns = record.monotonic_ns


class OutputProgress:
    """Judges a rank that is not instrumented by the growth of its output files."""

    def __init__(self) -> None:
        self._bytes = -1
        self._since = time.monotonic()

    def status(
        self, known: KnownRank, files: Iterable[Path], *, step: int | None, alive: bool, process_state: str | None
    ) -> RankStatus:
        written = sum(_size(path) for path in files)
        if written != self._bytes:
            self._bytes, self._since = written, time.monotonic()
        return RankStatus(
            rank=known.rank,
            local_rank=known.local_rank,
            pid=known.process.pid,
            step=step,
            idle_s=time.monotonic() - self._since,
            phase=None,
            phase_s=0.0,
            alive=alive,
            process_state=process_state,
            dropped=0,
            instrumented=False,
        )


def row_of(record: Record) -> StepRow:
    return StepRow(
        step=record.step,
        position=record.position,
        at=record.wall_ns / 1e9,
        loss=record.loss,
        grad_norm=record.grad_norm,
        tokens=record.tokens,
    )


def step_to_stop_at(steps: Iterable[int | None], median_step_s: float | None) -> int:
    """A step that no rank has passed when it sees the order: two steps or half a second ahead of the first rank."""
    newest = max((step for step in steps if step is not None), default=0)
    ahead = math.ceil(_AHEAD_S / median_step_s) if median_step_s else 0
    return newest + max(_AHEAD_STEPS, ahead)


def process_state(known: KnownRank) -> str | None:
    found = processes.stat_of(known.process)
    return None if found is None else found.state


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
