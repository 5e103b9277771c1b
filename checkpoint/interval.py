# SPDX-License-Identifier: Apache-2.0
"""How far apart checkpoints should be: fixed steps, a time, or the optimum for what saves and failures cost. Pure.

Ranks save after the same step, so every choice ends as a step; times only say which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from checkpoint.api import CheckpointError

PRIOR_RANK_MTTF_S = 54 * 86400 * 16384 / 419
"""Mean time to failure of one rank while nothing better is known, about 5.8 years: Llama 3 405B saw 419 unexpected
interruptions in 54 days on 16,384 GPUs (arXiv 2407.21783, section 3.3.4)."""
LONGEST_S = 3600.0
"""The automatic interval is never longer: it rests on guesses, and an hour is what a person thinks safe to lose."""
FIRST_S = 60.0
"""The automatic interval until a save has been measured."""

_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


@dataclass(frozen=True, slots=True)
class Every:
    """When saves are due: each `steps` steps, about each `seconds` seconds, or, when both are None, automatically."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The failures that the run has seen, and in how many seconds."""

    failures: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What saves have cost so far, in seconds: time that training lost, and time until the commit."""

    stalls_s: tuple[float, ...] = ()
    writes_s: tuple[float, ...] = ()

    def with_save(self, stall_s: float, write_s: float, *, remembered: int = 9) -> Costs:
        """The costs with one more save; only the last few count, so that they follow a storage that has changed."""
        return Costs((*self.stalls_s, stall_s)[-remembered:], (*self.writes_s, write_s)[-remembered:])


def parse_every(every: int | str | timedelta) -> Every:
    """Read a number of steps, a time such as `10m` or `1h30m`, a timedelta, or `auto`.

    Raises:
        CheckpointError: it is none of them, or not above zero.
    """
    if isinstance(every, timedelta):
        parsed = Every(seconds=every.total_seconds())
    elif isinstance(every, int):
        parsed = Every(steps=every)
    elif every == "auto":
        return Every()
    elif every.isdecimal():
        parsed = Every(steps=int(every))
    elif _TIME.fullmatch(every):
        parsed = Every(seconds=sum(float(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(every)))
    else:
        raise CheckpointError(f"every={every!r}: give steps (500), a time ('10m', '1h30m', a timedelta) or 'auto'")
    if (parsed.steps if parsed.seconds is None else parsed.seconds) in (None, 0) or (parsed.steps or 0) < 0:
        raise CheckpointError(f"every={every!r} must be at least 1 step, or more than 0 seconds")
    if parsed.seconds is not None and parsed.seconds < 0:
        raise CheckpointError(f"every={every!r} must be more than 0 seconds")
    return parsed


def parse_history(text: str | None) -> History:
    """Read `<failures>:<seconds>`, which the supervisor says in `CHECKPOINT_FAILURES`; anything else tells nothing."""
    found = re.fullmatch(r"(\d+):(\d+(?:\.\d+)?)", text or "")
    return History(int(found[1]), float(found[2])) if found else History()


def mttf(history: History, ranks: int) -> float:
    """Expected seconds between failures of a run of so many ranks.

    The mean of the rate's posterior, for failures that come at random (Poisson) and a Gamma prior that weighs as much
    as one failure in the prior's own time (Gelman et al., Bayesian Data Analysis, section 2.6).
    """
    return (PRIOR_RANK_MTTF_S / ranks + history.seconds) / (1 + history.failures)


def optimum(cost_s: float, mttf_s: float) -> float:
    """Seconds of training between two saves that lose the least, for saves that cost `cost_s` of training each.

    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
    Systems 22 (2006), equation 37, doi.org/10.1016/j.future.2004.11.016; its first term is Young's (1974),
    sqrt(2 cost mttf).
    """
    if cost_s >= 2 * mttf_s:
        return mttf_s
    ratio = cost_s / (2 * mttf_s)
    return math.sqrt(2 * cost_s * mttf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def wanted_seconds(every: Every, costs: Costs, mttf_s: float) -> float:
    """Seconds from one save to the next for an interval that is not in steps.

    The automatic one is at least twice the time that a save takes to be committed, so that saves do not pile up.
    """
    if every.seconds is not None:
        return every.seconds
    if not costs.stalls_s:
        return FIRST_S
    least = 2 * median(costs.writes_s)
    return max(least, min(LONGEST_S, optimum(median(costs.stalls_s), mttf_s)))


def next_due(step: int, *, step_s: float, wanted_s: float, lead_s: float, least: int) -> int:
    """The step after which the next save is due.

    Args:
        step: steps done, at which the interval begins.
        step_s: seconds that a step takes.
        wanted_s: seconds from one save to the next.
        lead_s: seconds that the news of it takes to every rank.
        least: steps that it must be ahead anyway.
    """
    if step_s <= 0 or not math.isfinite(step_s):
        return step + least
    return step + max(least, math.ceil(lead_s / step_s), round(wanted_s / step_s))


def mean_step(times: Sequence[tuple[int, float]]) -> float:
    """Seconds a step, from steps and the times at which they were done: first to last, pauses and all."""
    (first, began), (last, ended) = times[0], times[-1]
    return (ended - began) / (last - first) if last > first else 0.0
