# SPDX-License-Identifier: Apache-2.0
"""A step's batch is a pure function of the step and the skipped ranges, over any number of attempts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.training.positions import DataPosition, Range, joined, merged, parsed, position_of_step, steps_before

RANGES = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 25)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=5
)


def is_skipped(position: int, ranges: tuple[Range, ...]) -> bool:
    return any(first <= position <= last for first, last in ranges)


@given(RANGES)
@settings(max_examples=200)
def test_merged_ranges_cover_the_same_positions_and_lie_apart(ranges: list[Range]) -> None:
    result = merged(ranges)
    assert [is_skipped(p, result) for p in range(160)] == [is_skipped(p, tuple(ranges)) for p in range(160)]
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(result))


@given(RANGES)
@settings(max_examples=200)
def test_steps_train_on_exactly_the_kept_positions_in_order(ranges: list[Range]) -> None:
    skipped = merged(ranges)
    kept = [position for position in range(400) if not is_skipped(position, skipped)][:200]
    assert [position_of_step(step, skipped) for step in range(1, 201)] == kept
    assert [steps_before(position, skipped) for position in kept] == list(range(200))


@given(RANGES, RANGES, st.integers(0, 200))
@settings(max_examples=200)
def test_a_range_ordered_later_changes_nothing_before_the_restored_position(
    remembered: list[Range], ordered: list[Range], position: int
) -> None:
    before, after = merged(remembered), joined(remembered, ordered, position)
    assert [is_skipped(p, before) for p in range(position)] == [is_skipped(p, after) for p in range(position)]
    assert all(is_skipped(p, after) for p in range(position, 160) if is_skipped(p, merged([*remembered, *ordered])))
    assert steps_before(position, before) == steps_before(position, after)


ATTEMPTS = st.lists(
    st.tuples(RANGES, st.integers(0, 1000), st.integers(0, 60)), min_size=1, max_size=6
)  # (ordered ranges, which checkpoint to restore, steps to train)


@given(ATTEMPTS)
@settings(max_examples=200)
def test_no_batch_is_trained_twice_or_lost_over_attempts(attempts: list[tuple[list[Range], int, int]]) -> None:
    saved: list[tuple[list[int], dict[str, int | str]]] = []  # what led to a checkpoint, and its data state
    for ordered, choice, steps in attempts:
        data = DataPosition(ordered)
        lineage: list[int] = []
        if saved and choice % (len(saved) + 1) > 0:
            trained, state = saved[choice % (len(saved) + 1) - 1]
            data.load_state_dict(state)
            lineage = list(trained)
        data.begin(len(lineage))
        for step, position in zip(range(len(lineage) + 1, len(lineage) + steps + 1), data.ahead(), strict=False):
            assert position == data.position == position_of_step(step, data.skipped)
            data.advance(step)
            lineage.append(position)
        saved.append((list(lineage), data.state_dict()))
        assert all(left < right for left, right in itertools.pairwise(lineage))
        kept = [position for position in range(data.position) if not is_skipped(position, data.skipped)]
        assert lineage == kept


def test_a_checkpoint_remembers_ranges_that_the_next_attempt_does_not_name() -> None:
    first = DataPosition([(10, 19)])
    first.begin(0)
    first.advance(5)
    second = DataPosition([(30, 39)])
    second.load_state_dict(first.state_dict())
    assert second.skipped == ((10, 19), (30, 39))


def test_a_range_around_the_restored_position_counts_from_there() -> None:
    first = DataPosition()
    first.begin(0)
    first.advance(100)
    second = DataPosition([(90, 110)])
    second.load_state_dict(first.state_dict())
    second.begin(100)
    assert second.skipped == ((100, 110),) and second.position == 111


def test_an_earlier_checkpoint_restored_next_forgets_what_the_first_one_added() -> None:
    early = DataPosition().state_dict()
    late = DataPosition([(5, 6)]).state_dict()
    data = DataPosition()
    data.load_state_dict(late)
    data.load_state_dict(early)
    assert data.skipped == ()


def test_a_start_that_does_not_fit_the_restored_position_is_refused() -> None:
    first = DataPosition()
    first.advance(7)
    second = DataPosition()
    second.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match=r"batches\(start=6\) does not fit the restored data position 7"):
        second.begin(6)


@pytest.mark.parametrize(
    "text", ["[[3, 1]]", "[[-1, 4]]", "[[1, 2, 3]]", "[1, 2]", "7", "[[1.5, 2]]", "[[1", '{"a": 1}']
)
def test_what_is_no_list_of_ranges_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"skipped range|Expecting"):
        parsed(text)


def test_no_text_is_no_range() -> None:
    assert parsed(" ") == ()


def test_a_state_of_another_kind_is_refused_with_what_it_holds() -> None:
    with pytest.raises(ValueError, match=r"lacks 'position'; it holds \['epoch'\]"):
        DataPosition().load_state_dict({"epoch": 3})


def test_a_negative_start_and_step_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be -1"):
        DataPosition().begin(-1)
    with pytest.raises(ValueError, match="numbered from 1"):
        position_of_step(0, ())
