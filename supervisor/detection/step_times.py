# SPDX-License-Identifier: Apache-2.0
"""What a run's own step times say about how long it may be silent.

The trap: a deadline of a few medians is right for a calm run and a false alarm for a run with heavy tails, and
nobody knows which of the two a run is before it has shown it. So the allowance starts wide, becomes tight only after
a long calm, and grows with the extremes that the run has shown. Ratios to the median of their time are kept, not
seconds, so a slow drift of the step time changes nothing.
"""

from __future__ import annotations

import heapq
import math
import statistics
from dataclasses import dataclass, replace

WINDOW = 256
"""Newest durations that give the median."""

WARMUP_STEPS = 8
"""First durations of an attempt: lazy compilation, allocator and cache warm-up. They say nothing about the tail."""

GENERATION = 4096
"""Extremes are remembered for one to two generations of steps."""

EXTREMES = 64
"""Largest ratios that are kept of each generation."""

CALM_STEPS = 1000
"""Steps that a run must show before its calm is believed (a stray step in 200 would almost surely have been seen)."""

CALM_RATIO = 2.0
"""A calm run has no remembered step beyond this many medians."""

WILD_FACTOR = 12.0
"""Medians allowed to a run that is young or not calm: stray steps of up to ten medians are met in practice."""

EXCEEDANCE = 1e-6
"""Chance per step that the extrapolated tail is exceeded: 1 % in 10,000 steps."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations seen so far, in seconds, and the two numbers learned from them."""

    window: tuple[float, ...] = ()
    """Newest durations, oldest first."""
    extremes: tuple[float, ...] = ()
    """Largest ratios to the median in this generation."""
    older_extremes: tuple[float, ...] = ()
    count: int = 0
    """Steps of this generation."""
    older_count: int = 0
    warming: int = WARMUP_STEPS
    """Steps that are still warm-up."""
    median_s: float = 0.0
    tail_factor: float = WILD_FACTOR
    """Medians that a step may last before it is beyond what the run has shown."""

    @property
    def is_warming(self) -> bool:
        return self.warming > 0


def learned(times: StepTimes, durations: tuple[float, ...]) -> StepTimes:
    """`times` after the given durations (seconds, oldest first; not finite or not positive ones are left out)."""
    kept = tuple(each for each in durations if 0.0 < each < math.inf)
    if not kept:
        return times
    window = (times.window + kept)[-WINDOW:]
    median_s = statistics.median(window)
    fresh = kept[times.warming :]
    warm = replace(times, window=window, median_s=median_s, warming=max(0, times.warming - len(kept)))
    return _with_ratios(warm, [each / median_s for each in fresh]) if fresh else warm


def rewarmed(times: StepTimes) -> StepTimes:
    """`times` at the start of an attempt or after a compilation: what was learned stays, the next steps are warm-up."""
    return replace(times, warming=WARMUP_STEPS)


def _with_ratios(times: StepTimes, ratios: list[float]) -> StepTimes:
    count = times.count + len(ratios)
    known = times.extremes
    if len(known) < EXTREMES or max(ratios) > known[-1]:
        known = tuple(heapq.nlargest(EXTREMES, [*known, *ratios]))
    if count >= GENERATION:
        times = replace(times, older_extremes=known, older_count=count, extremes=(), count=0)
    else:
        times = replace(times, extremes=known, count=count)
    return replace(times, tail_factor=_tail_factor(times))


def _tail_factor(times: StepTimes) -> float:
    steps = times.count + times.older_count
    largest = heapq.nlargest(EXTREMES, times.extremes + times.older_extremes)
    shown = max(1.25 * largest[0], min(extrapolated(largest, steps), 8.0 * largest[0]))
    is_calm = steps >= CALM_STEPS and largest[0] < CALM_RATIO
    return shown if is_calm else max(shown, WILD_FACTOR)


def extrapolated(largest: list[float], steps: int) -> float:
    """Ratio that a step exceeds with chance EXCEEDANCE, given the largest ratios (descending) of so many steps.

    Weissman's quantile (JASA 1978) with Hill's tail index (Annals of Statistics 1975) raised by one standard error,
    because a tail that is taken for too light is a false alarm and one taken for too heavy only a later alarm.
    """
    used = min(len(largest) - 1, max(8, steps // 16))
    if used < 1:
        return largest[0]
    threshold = largest[used]
    index = sum(math.log(each / threshold) for each in largest[:used]) / used
    index *= 1.0 + 1.0 / math.sqrt(used)
    return threshold * math.exp(index * math.log(max(1.0, used / (steps * EXCEEDANCE))))
