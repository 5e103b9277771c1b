# SPDX-License-Identifier: Apache-2.0
"""What the loss and the gradient norm of a run normally are, robustly.

The invariant: every number here scales with the losses, so a loss in other units gives the same verdicts. The level is
the median of the newest losses, which lags a falling loss from above (never an alarm); the spread is taken around a
line through the window, so that the fall of early training does not count as noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 128
"""Accepted losses that give the spread (OLMo-core's SkipStepOptimizer looks at as many)."""

LEVEL_WINDOW = 32
"""Accepted losses that give the level, and the fewest from which anything is judged."""

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""

SMALLEST_SPREAD = 0.002
"""Least relative spread: a loss that is printed with few digits seems to have none."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Level and robust standard deviation, in the loss's own units."""

    level: float
    sigma: float

    def severity(self, value: float) -> float:
        """Robust standard deviations above the level; 0 for a value that is level with it although sigma is 0."""
        excess = value - self.level
        return excess / self.sigma if self.sigma > 0.0 else math.copysign(math.inf, excess) if excess else 0.0

    def rise(self, value: float) -> float:
        """Excess over the level relative to the level's size: 1.0 is a doubling."""
        excess = value - self.level
        return excess / abs(self.level) if self.level else math.copysign(math.inf, excess) if excess else 0.0


def fitted(values: Sequence[float]) -> Baseline | None:
    """Baseline of the newest accepted losses (oldest first); None while there are too few."""
    if len(values) < LEVEL_WINDOW:
        return None
    window = values[-WINDOW:]
    half = len(window) // 2
    early, late = statistics.median(window[:half]), statistics.median(window[half:])
    slope = (late - early) / (len(window) - half)
    middle = (len(window) - 1) / 2.0
    centre = (early + late) / 2.0
    residuals = [abs(value - centre - slope * (index - middle)) for index, value in enumerate(window)]
    level = statistics.median(window[-LEVEL_WINDOW:])
    sigma = max(MAD_TO_SIGMA * statistics.median(residuals), SMALLEST_SPREAD * abs(level))
    return Baseline(level, sigma)


def norm_ratio(norms: Sequence[float], norm: float | None) -> float | None:
    """Gradient norm over the median of the newest accepted ones; None where there is none to compare."""
    if norm is None or len(norms) < LEVEL_WINDOW:
        return None
    usual = statistics.median(norms[-WINDOW:])
    return norm / usual if usual > 0.0 else None


def norm_spread(norms: Sequence[float]) -> float:
    """Robust standard deviation of the natural logarithm of the (positive) gradient norms."""
    logs = [math.log(each) for each in norms[-WINDOW:]]
    centre = statistics.median(logs)
    return MAD_TO_SIGMA * statistics.median(abs(each - centre) for each in logs)
