# SPDX-License-Identifier: Apache-2.0
"""Which signal goes to which process while an attempt is being ended; pure.

Ranks first: SIGTERM, and SIGKILL once the grace is over. A stopped rank cannot act on SIGTERM and gets SIGKILL at once.
The launcher goes last, by SIGKILL: some launchers have the kernel kill their ranks when they die, which would take
the grace away, and torchrun would wait 30 s for ranks that ignore SIGTERM.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.agent.processes import ProcessId

STUCK_AFTER_S = 5.0
"""From SIGKILL until a process that is still there is told to a person."""


@dataclass(frozen=True, slots=True)
class Signalling:
    process: ProcessId
    number: signal.Signals


@dataclass(slots=True)
class Stopping:
    """`grace_until` is on the monotonic clock of the caller, as is every `now`."""

    grace_until: float
    asked: set[ProcessId] = field(default_factory=set)
    forced: dict[ProcessId, float] = field(default_factory=dict)

    def due(self, now: float, ranks: Mapping[ProcessId, str], others: Iterable[ProcessId]) -> list[Signalling]:
        """Signals to send now; `ranks` are the living ones with their state, `others` what else still lives."""
        result = [each for process, state in ranks.items() if (each := self._for_rank(now, process, state))]
        if not ranks:
            result += [each for process in others if (each := self._kill(now, process))]
        return result

    def next_at(self, now: float) -> float:
        """When to look again although no process has ended."""
        return self.grace_until if now < self.grace_until else now + 0.1

    def stuck(self, now: float) -> list[ProcessId]:
        """Processes that have not died of SIGKILL in time, if the caller still sees them."""
        return [process for process, since in self.forced.items() if now >= since + STUCK_AFTER_S]

    def _for_rank(self, now: float, process: ProcessId, state: str) -> Signalling | None:
        if now >= self.grace_until or state in "Tt":
            return self._kill(now, process)
        if process in self.asked:
            return None
        self.asked.add(process)
        return Signalling(process, signal.SIGTERM)

    def _kill(self, now: float, process: ProcessId) -> Signalling | None:
        if process in self.forced:
            return None
        self.forced[process] = now
        return Signalling(process, signal.SIGKILL)
