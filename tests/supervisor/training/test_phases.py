# SPDX-License-Identifier: Apache-2.0
"""Every moment in a phase is charged once, to the innermost phase."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.training.phases import PhaseClock

SECOND = 1_000_000_000


def test_an_inner_phase_takes_its_time_from_the_outer_one() -> None:
    clock = PhaseClock()
    clock.enter("evaluation", 1, 10 * SECOND)
    clock.enter("checkpoint", 2, 13 * SECOND)
    assert clock.leave(20 * SECOND) == (1, 10 * SECOND)
    assert clock.leave(21 * SECOND) is None
    assert clock.taken(25 * SECOND) == (0.0, 4.0, 7.0, 0.0)


def test_a_phase_that_is_open_at_a_report_is_charged_on_both_sides() -> None:
    clock = PhaseClock()
    clock.enter("compile", 1, 0)
    assert clock.taken(2 * SECOND) == (0.0, 0.0, 0.0, 2.0)
    clock.leave(5 * SECOND)
    assert clock.taken(9 * SECOND) == (0.0, 0.0, 0.0, 3.0)


def test_waiting_for_the_loader_is_charged_as_data() -> None:
    clock = PhaseClock()
    clock.waited_for_data(0.25)
    clock.waited_for_data(0.5)
    assert clock.taken(0) == (0.75, 0.0, 0.0, 0.0) and clock.taken(0) == (0.0, 0.0, 0.0, 0.0)


@given(st.lists(st.tuples(st.sampled_from(["evaluation", "checkpoint", "data", "x", "leave"]), st.integers(0, 9))))
@settings(max_examples=100)
def test_charges_add_up_to_the_time_with_a_phase_open(moves: list[tuple[str, int]]) -> None:
    clock = PhaseClock()
    now = depth = expected = 0
    for name, wait in moves:
        now += wait
        expected += wait if depth else 0
        if name != "leave":
            clock.enter(name, 1, now * SECOND)
            depth += 1
        elif depth:
            clock.leave(now * SECOND)
            depth -= 1
    assert sum(clock.taken(now * SECOND)) == pytest.approx(expected)
