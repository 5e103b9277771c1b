# SPDX-License-Identifier: Apache-2.0
"""Which step a save is due at, from times and costs: numbers only."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.api import CheckpointError
from checkpoint.interval import (
    FIRST_S,
    LONGEST_S,
    PRIOR_RANK_MTTF_S,
    Costs,
    Every,
    History,
    mean_step,
    mttf,
    next_due,
    optimum,
    parse_every,
    parse_history,
    wanted_seconds,
)

EXAMPLES = settings(max_examples=150)
SECONDS = st.floats(1e-3, 1e5)
COSTS = st.floats(1e-3, 1e3)
MTTFS = st.floats(10.0, 1e9)


@pytest.mark.parametrize(
    ("every", "meant"),
    [
        (500, Every(steps=500)),
        ("500", Every(steps=500)),
        ("10m", Every(seconds=600)),
        ("1h30m", Every(seconds=5400)),
        ("0.5s", Every(seconds=0.5)),
        ("250ms", Every(seconds=0.25)),
        ("1d", Every(seconds=86400)),
        (timedelta(minutes=2), Every(seconds=120)),
        ("auto", Every()),
    ],
)
def test_an_interval_is_read_in_steps_in_time_or_as_automatic(every: int | str | timedelta, meant: Every) -> None:
    assert parse_every(every) == meant


@pytest.mark.parametrize(
    "every", [0, -1, "0", "0s", timedelta(0), timedelta(seconds=-1), "", "10 minutes", "10x", "-5m"]
)
def test_what_is_no_interval_is_refused_by_name(every: int | str | timedelta) -> None:
    with pytest.raises(CheckpointError, match="every="):
        parse_every(every)


def test_the_supervisors_failures_are_read_and_nonsense_tells_nothing() -> None:
    assert parse_history("3:7200.5") == History(3, 7200.5)
    assert parse_history(None) == parse_history("three") == parse_history("3") == History()


def test_the_optimum_is_the_published_one() -> None:
    """Young's first term for small costs; the value of Daly's equation 37 for cost 5 min and MTTF 24 h."""
    assert optimum(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=0.001)
    cost, mean = 300.0, 86400.0
    expected = math.sqrt(2 * cost * mean) * (1 + math.sqrt(cost / (2 * mean)) / 3 + cost / (18 * mean)) - cost
    assert optimum(cost, mean) == pytest.approx(expected) and 6900 < expected < 7100
    assert optimum(100.0, 40.0) == 40.0


def lost(interval: float, cost: float, mean: float) -> float:
    """Wall time over useful time, exactly, for failures that come at random and restarts that cost nothing.

    Daly 2006, equation 20, without its restart time.
    """
    return mean * math.expm1((interval + cost) / mean) / interval


@EXAMPLES
@given(cost=COSTS, ratio=st.floats(10.0, 1e6))
def test_no_other_interval_loses_noticeably_less_than_the_optimum(cost: float, ratio: float) -> None:
    mean = cost * ratio
    at_best = lost(optimum(cost, mean), cost, mean)
    for factor in (0.25, 0.5, 0.9, 1.1, 2.0, 4.0):
        assert at_best <= lost(optimum(cost, mean) * factor, cost, mean) * 1.003


@EXAMPLES
@given(cost=COSTS, mean=MTTFS, more=st.floats(1.0, 100.0))
def test_rarer_failures_never_ask_for_more_saves(cost: float, mean: float, more: float) -> None:
    assert 0 < optimum(cost, mean) <= optimum(cost, mean * more) * (1 + 1e-9) + 1e-9


@EXAMPLES
@given(failures=st.integers(0, 1000), seconds=st.floats(0, 1e8), ranks=st.integers(1, 100_000))
def test_the_failure_rate_starts_at_the_prior_and_follows_what_is_seen(
    failures: int, seconds: float, ranks: int
) -> None:
    seen = mttf(History(failures, seconds), ranks)
    assert mttf(History(), ranks) == PRIOR_RANK_MTTF_S / ranks
    assert mttf(History(failures + 1, seconds), ranks) < seen <= mttf(History(failures, seconds + 1e5), ranks)
    if failures:
        assert mttf(History(failures * 10**6, seconds * 10**6), ranks) == pytest.approx(seconds / failures, abs=2e3)


def test_the_automatic_interval_begins_with_a_guess_and_stays_within_bounds() -> None:
    auto = Every()
    assert wanted_seconds(auto, Costs(), 1e6) == FIRST_S
    assert wanted_seconds(auto, Costs().with_save(0.1, 1.0), 1e12) == LONGEST_S
    assert wanted_seconds(auto, Costs().with_save(0.1, 500.0), 10.0) == 1000.0
    assert wanted_seconds(auto, Costs().with_save(0.5, 1.0), 1e5) == pytest.approx(316, abs=2)
    assert wanted_seconds(Every(seconds=7.0), Costs().with_save(0.5, 100.0), 1e5) == 7.0


def test_one_slow_save_does_not_change_the_interval_and_old_ones_are_forgotten() -> None:
    costs = Costs()
    for _ in range(9):
        costs = costs.with_save(0.5, 1.0)
    before = wanted_seconds(Every(), costs, 1e5)
    assert wanted_seconds(Every(), costs.with_save(60.0, 60.0), 1e5) == before
    for _ in range(9):
        costs = costs.with_save(2.0, 1.0)
    assert costs.stalls_s == (2.0,) * 9
    assert wanted_seconds(Every(), costs, 1e5) == pytest.approx(2 * before, rel=0.01)


@EXAMPLES
@given(
    step=st.integers(0, 10**7),
    step_s=st.floats(1e-4, 1e3),
    wanted_s=SECONDS,
    lead_s=st.floats(0, 60),
    least=st.integers(1, 4),
)
def test_the_next_save_is_ahead_of_the_news_and_else_within_half_a_step_of_the_time(
    step: int, step_s: float, wanted_s: float, lead_s: float, least: int
) -> None:
    ahead = next_due(step, step_s=step_s, wanted_s=wanted_s, lead_s=lead_s, least=least) - step
    assert ahead >= least and ahead * step_s >= lead_s * (1 - 1e-9)
    bound = max(lead_s + step_s, least * step_s, wanted_s + step_s / 2)
    assert ahead * step_s <= bound * (1 + 1e-9)
    if wanted_s >= max(lead_s + step_s, (least + 1) * step_s):
        assert abs(ahead * step_s - wanted_s) <= step_s / 2 + 1e-6 * wanted_s


def test_steps_that_took_no_time_or_an_unknown_one_are_saved_soon() -> None:
    for step_s in (0.0, -1.0, math.inf, math.nan):
        assert next_due(10, step_s=step_s, wanted_s=60.0, lead_s=1.0, least=2) == 12
    assert mean_step([(5, 1.0)]) == 0.0 and mean_step([(5, 1.0), (3, 2.0)]) == 0.0
    assert mean_step([(5, 1.0), (9, 3.0)]) == 0.5
