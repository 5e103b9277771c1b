# SPDX-License-Identifier: Apache-2.0
"""What the loop's one queue carries: reports, orders, and what became of the work that it gave away."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import TypeAlias

from supervisor.agent import api as agent
from supervisor.core.api import decisions, events


@dataclass(slots=True)
class Reported:
    """A batch of reports and the thread that waits until it is on disk."""

    node: str
    sender: str
    sequence: int
    reports: tuple[agent.Report, ...]
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Ordered:
    """A person's order; `answer` holds what the core said to it."""

    order: events.OrderGiven
    answer: queue.Queue[list[str]] = field(default_factory=lambda: queue.Queue(1))


@dataclass(frozen=True, slots=True)
class EffectDone:
    decision: decisions.Decision
    event: events.Event | None


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Something was carried out, or why it could not be; `what` names it."""

    what: str
    error: str | None


Item: TypeAlias = Reported | Ordered | EffectDone | WorkDone | events.Event
