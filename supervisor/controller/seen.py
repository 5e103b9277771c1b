# SPDX-License-Identifier: Apache-2.0
"""What the reports have said of an attempt so far, and what the monitor makes of them besides the core's events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from supervisor.agent import api as agent
from supervisor.core.api import Severity, events
from supervisor.detection import api as detection


@dataclass(frozen=True, slots=True)
class Told:
    """A line for a person that changes no state."""

    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class UriLearned:
    """Where the ranks keep their checkpoints."""

    uri: str


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """Whether the loss is clean now; the ranks write it into their checkpoints."""

    healthy: bool


Noticed: TypeAlias = events.Event | Told | UriLearned | HealthChanged


@dataclass(slots=True)
class AttemptSeen:
    """What the reports have said of one attempt so far."""

    attempt: int
    began_at: float | None = None
    begun: set[str] = field(default_factory=set)
    ranks: dict[int, tuple[str, agent.RankStatus]] = field(default_factory=dict)
    exits: dict[int, tuple[str, agent.RankExit]] = field(default_factory=dict)
    ended: dict[str, agent.AttemptEnded] = field(default_factory=dict)
    steps_from: str | None = None
    source: str | None = None
    last: agent.StepRow | None = None
    durations: list[float] = field(default_factory=list)
    sampled_step: int | None = None
    sampled_at: float = 0.0
    told_hang: int | None = -1
    imported: bool = False
    restored: bool = False
    refusal: str = ""
    polled_at: dict[str, float] = field(default_factory=dict)
    """When each node last told how its ranks are."""
    silent: bool = False
    """The detectors call the attempt hung at the newest poll."""

    @property
    def is_instrumented(self) -> bool:
        return any(status.instrumented for _, status in self.ranks.values())

    def progress(self) -> tuple[detection.RankProgress, ...]:
        """Of the ranks that may still be waited for, in order."""
        return tuple(
            detection.RankProgress(
                rank,
                node,
                status.step if status.instrumented else None,
                status.idle_s,
                status.phase,
                status.phase_s,
                status.alive,
                status.process_state,
            )
            for rank, (node, status) in sorted(self.ranks.items())
            if rank not in self.exits or self.exits[rank][1].exit_code not in (0, None)
        )
