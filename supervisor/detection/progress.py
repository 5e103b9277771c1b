# SPDX-License-Identifier: Apache-2.0
"""What the hang detector is told, what a person may set, and what it answers.

The trap: idle times are measured by the rank's own host, so that a late report looks younger than it is, never older.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class HangKind(str, Enum):
    """Who is silent."""

    ALL_SILENT = "all ranks silent"
    SOME_SILENT = "some ranks silent"
    NO_STEP = "signs of life but no step"


@dataclass(frozen=True, slots=True)
class RankProgress:
    """One rank as its node agent saw it last. Ranks that ended with exit code 0 are not listed.

    A step that was read from log lines does not belong here, because the pauses between such lines are not known:
    give None, and the rank is judged by its output's silence.
    """

    rank: int
    node: str
    step: int | None
    """Newest optimizer step, None while there is none or the rank does not report."""
    idle_s: float
    """Seconds since the rank's last sign of life (step, phase change; output when it does not report), by its host."""
    phase: str | None = None
    """Known pause that the rank is inside, by name."""
    phase_s: float = 0.0
    alive: bool = True
    process_state: str | None = None
    """Linux process state: R, S, D, T or Z."""


@dataclass(frozen=True, slots=True)
class HangPolicy:
    """What a person may set; all times in seconds."""

    floor_s: float = 3.0
    """Shortest deadline: with a report of 1 s age and a poll each second a stop is noticed within 5 s."""
    cap_s: float = 1800.0
    """Longest deadline that is learned."""
    startup_s: float = 600.0
    """Deadline until the first step, known pauses not counted."""
    warmup_s: float = 120.0
    """Shortest deadline in the first steps after a start or a compilation."""
    silence_s: float = 1800.0
    """Deadline for the output of a job that reports nothing."""
    pause_s: float = 1800.0
    """Deadline of a known pause of which no duration is known yet."""
    pause_s_by_name: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({"evaluation": 3600.0, "leaving": 600.0})
    )

    def __post_init__(self) -> None:
        if not 0.0 < self.floor_s <= self.cap_s:
            raise ValueError(
                f"hang deadline: floor_s={self.floor_s} must be above 0 and at most cap_s={self.cap_s}; raise cap_s"
            )


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """One poll: when, every rank's progress, and the durations of the steps finished since the last poll.

    Durations are in seconds, oldest first, known pauses taken out.
    """

    at: float
    ranks: tuple[RankProgress, ...]
    durations: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The job hangs. Given again at each poll as long as it holds; `step` tells one hang from the next."""

    step: int | None
    """Newest step of any rank."""
    silent_s: float
    deadline_s: float
    why: str
    culprits: tuple[int, ...]
    """Ranks by suspicion: stopped or gone, overdue in a pause, behind in step, uninterruptible, idle longest."""
    kind: HangKind
    is_clear: bool
    """Whether the first culprit stands out by more than its idle time."""
