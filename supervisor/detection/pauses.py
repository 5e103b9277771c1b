# SPDX-License-Identifier: Apache-2.0
"""How long the known pauses of a run (evaluation, checkpoint, compile, ...) may last.

The invariant: one pause of the job counts once, however many ranks take part in it, so that a large job does not
learn a deadline from a single evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

OCCURRENCES = 32
"""Newest durations that are kept for each phase name."""

TRUSTED_OCCURRENCES = 3
"""Occurrences before a learned deadline may be shorter than the default (a first evaluation is often a short one)."""

FACTOR = 4.0
"""Longest durations of a phase that the next one may last."""

SHORTEST_S = 10.0
"""No learned deadline of a phase is shorter: its durations are known to a poll only."""


@dataclass(frozen=True, slots=True)
class PauseTimes:
    """Durations of finished pauses by phase name, and the pauses that are going on now; all in seconds."""

    finished: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Phase name and its newest durations, oldest first."""
    running: tuple[tuple[str, float], ...] = ()
    """Phase name and the longest time that any rank has been inside."""


def watched(pauses: PauseTimes, inside: Mapping[str, float]) -> PauseTimes:
    """`pauses` after a poll that found ranks inside the named phases for so many seconds (the longest of the ranks)."""
    if not inside and not pauses.running:
        return pauses
    finished = dict(pauses.finished)
    for name, phase_s in pauses.running:
        if inside.get(name, -1.0) < phase_s:  # gone, or a new occurrence since the last poll
            finished[name] = (*finished.get(name, ()), phase_s)[-OCCURRENCES:]
    return replace(pauses, finished=tuple(finished.items()), running=tuple(inside.items()))


def abandoned(pauses: PauseTimes) -> PauseTimes:
    """`pauses` without those going on: they were cut off by the end of an attempt and say nothing."""
    return replace(pauses, running=())


def deadline_s(pauses: PauseTimes, name: str, *, default_s: float, cap_s: float) -> float:
    """Seconds that phase `name` may last: `default_s` until it is known, then a multiple of its longest, capped.

    A default above the cap was set by a person who knows the pause, so it is kept.
    """
    durations = dict(pauses.finished).get(name, ())
    if not durations:
        return default_s
    learned = max(SHORTEST_S, FACTOR * max(durations))
    if len(durations) < TRUSTED_OCCURRENCES:
        learned = max(learned, default_s)
    return min(learned, max(cap_s, default_s))
