# SPDX-License-Identifier: Apache-2.0
"""Reports on their way to the controller, kept until it has acknowledged them.

A controller may be away for hours. Exits, ends and checkpoint facts are never dropped. Of what is superseded (the
ranks' state) only the newest waits, and step rows are thinned when too many wait.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace

from supervisor.agent.api import PROTOCOL_VERSION, RanksPolled, Report, ReportBatch, StepRow, StepsSeen
from supervisor.core import codec

MAX_WAITING_ROWS = 4096
_KEPT_NEWEST = 1024
MAX_BATCH_REPORTS = 512


class Outbox:
    """Filled by the agent's loop, emptied by the link's thread."""

    def __init__(self, node: str, agent: str) -> None:
        self._node = node
        self._agent = agent
        self._lock = threading.Condition()
        self._waiting: list[Report] = []
        self._sent: list[Report] = []
        self._batch: ReportBatch | None = None
        self._sequence = 0
        self._is_due = False
        self._attempt = 0
        self._is_alive = False
        self.thinned = 0
        """Step rows that were left out so far."""

    def stand(self, attempt: int, *, is_alive: bool) -> None:
        """Set the newest attempt and whether it is alive, as every batch tells them."""
        with self._lock:
            self._attempt, self._is_alive = attempt, is_alive

    def add(self, report: Report) -> None:
        """Let it wait for the next flush."""
        with self._lock:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(report, RanksPolled):
                self._waiting = [each for each in self._waiting if not isinstance(each, RanksPolled)]
            if isinstance(report, StepsSeen) and isinstance(last, StepsSeen) and _are_joinable(last, report):
                self._waiting[-1] = replace(report, rows=last.rows + report.rows)
            else:
                self._waiting.append(report)
            self._thin()

    def flush(self) -> None:
        """Send what waits now, or a sign of life when nothing does."""
        with self._lock:
            self._is_due = True
            self._lock.notify_all()

    def next_batch(self, timeout_s: float) -> ReportBatch | None:
        """The unacknowledged batch again, else a new one once it is due; None when it is not within the time."""
        with self._lock:
            if self._batch is not None:
                return self._batch
            if not self._is_due:
                self._lock.wait(timeout_s)
            if not self._is_due:
                return None
            self._sent, self._waiting = self._waiting[:MAX_BATCH_REPORTS], self._waiting[MAX_BATCH_REPORTS:]
            self._is_due = bool(self._waiting)
            self._sequence += 1
            self._batch = ReportBatch(
                version=PROTOCOL_VERSION,
                node=self._node,
                agent=self._agent,
                sequence=self._sequence,
                attempt=self._attempt,
                attempt_alive=self._is_alive,
                reports=tuple(codec.encode(report) for report in self._sent),
            )
            return self._batch

    def acknowledge(self, sequence: int) -> tuple[Report, ...]:
        """Forget the batch of that number and return its reports; another number changes nothing."""
        with self._lock:
            if self._batch is None or self._batch.sequence != sequence:
                return ()
            told = tuple(self._sent)
            self._batch, self._sent = None, []
            self._lock.notify_all()
            return told

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Whether everything was acknowledged within the time."""
        with self._lock:
            return self._lock.wait_for(lambda: self._batch is None and not self._waiting, timeout_s)

    def _thin(self) -> None:
        rows = sum(len(each.rows) for each in self._waiting if isinstance(each, StepsSeen))
        if rows <= MAX_WAITING_ROWS:
            return
        spared = _KEPT_NEWEST
        for index in range(len(self._waiting) - 1, -1, -1):
            report = self._waiting[index]
            if isinstance(report, StepsSeen):
                thin = thinned(report.rows, spared)
                spared = max(0, spared - len(report.rows))
                self.thinned += len(report.rows) - len(thin)
                self._waiting[index] = replace(report, rows=thin)


def thinned(rows: tuple[StepRow, ...], spared: int) -> tuple[StepRow, ...]:
    """Every second row is left out, except the newest `spared` ones and those whose loss is not a number."""
    old, new = (rows[:-spared], rows[-spared:]) if spared else (rows, ())
    kept = [row for index, row in enumerate(old) if index % 2 == 0 or not _is_ordinary(row)]
    return (*kept, *new)


def _is_ordinary(row: StepRow) -> bool:
    return all(value is None or math.isfinite(value) for value in (row.loss, row.grad_norm))


def _are_joinable(last: StepsSeen, report: StepsSeen) -> bool:
    return (last.attempt, last.source) == (report.attempt, report.source)
