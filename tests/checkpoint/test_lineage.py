# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints count, and which may be deleted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.api import CheckpointRef, CommittedCheckpoint, Fence
from checkpoint.lineage import (
    advanced_fence,
    expendable,
    folder_of,
    is_committed_name,
    is_visible,
    parse_resume,
    partial_folder_of,
    ref_of,
)

REFS = st.builds(CheckpointRef, st.integers(0, 10**12 - 1), st.integers(1, 99))


def committed(step: int, attempt: int = 1, *, healthy: bool | None = None) -> CommittedCheckpoint:
    return CommittedCheckpoint(step, attempt, 0.0, None, (), healthy, 1, 1, "somewhere")


@pytest.mark.parametrize(
    ("title", "ref", "fence", "expected"),
    [
        ("no fence cuts nothing off", (5, 1), None, True),
        ("the fence's own attempt counts", (5, 2), Fence(2), True),
        ("an older attempt does not", (5, 1), Fence(2), False),
        ("an older attempt counts when it is sealed", (5, 1), Fence(2, 5, 1, (CheckpointRef(5, 1),)), True),
        ("a seal is for one step", (6, 1), Fence(2, 5, 1, (CheckpointRef(5, 1),)), False),
        ("a seal is for one attempt", (5, 2), Fence(3, 5, 1, (CheckpointRef(5, 1),)), False),
        ("an attempt newer than the fence does not count", (5, 4), Fence(3), False),
    ],
)
def test_the_fence_decides_what_is_visible(
    title: str, ref: tuple[int, int], fence: Fence | None, expected: bool
) -> None:
    assert is_visible(CheckpointRef(*ref), fence) is expected, title


def test_a_rollback_seals_up_to_its_step_and_cuts_off_the_rest() -> None:
    visible = [CheckpointRef(100, 1), CheckpointRef(200, 1), CheckpointRef(300, 2)]
    fence = advanced_fence(3, resume=CheckpointRef(200, 1), visible=visible, controller="test")
    assert [is_visible(ref, fence) for ref in visible] == [True, True, False]
    assert (fence.resume_step, fence.resume_attempt) == (200, 1)


def test_a_start_from_nothing_cuts_off_everything() -> None:
    fence = advanced_fence(2, resume=None, visible=[CheckpointRef(100, 1)], controller="test")
    assert not is_visible(CheckpointRef(100, 1), fence)


@given(st.sets(REFS), REFS)
@settings(max_examples=100)
def test_what_a_new_attempt_sees_is_never_newer_than_its_resume_point(
    visible: set[CheckpointRef], resume: CheckpointRef
) -> None:
    fence = advanced_fence(100, resume=resume, visible=visible, controller="test")
    assert {ref for ref in visible if is_visible(ref, fence)} == {ref for ref in visible if ref <= resume}


@given(REFS)
@settings(max_examples=100)
def test_a_folder_name_tells_its_checkpoint(ref: CheckpointRef) -> None:
    assert ref_of(folder_of(ref)) == ref_of(partial_folder_of(ref)) == ref
    assert is_committed_name(folder_of(ref)) and not is_committed_name(partial_folder_of(ref))


@pytest.mark.parametrize("name", ["", "step-5-a1", "step-000000000005", "other", "deleted-step-000000000005-a1"])
def test_a_foreign_folder_is_not_a_checkpoint(name: str) -> None:
    assert ref_of(name) is None


def test_retention_keeps_the_newest_the_nth_and_the_last_good_one() -> None:
    health: dict[int, bool | None] = {10: True, 20: True, 30: True, 40: False, 50: False}
    all_of_them = [committed(step, healthy=is_healthy) for step, is_healthy in health.items()]
    assert [each.step for each in expendable(all_of_them, keep=2, keep_every=10)] == []
    assert [each.step for each in expendable(all_of_them, keep=2, keep_every=20)] == [10]
    assert [each.step for each in expendable(all_of_them, keep=2)] == [10, 20]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3), st.sampled_from([True, False, None])), max_size=12),
    st.integers(1, 5),
)
@settings(max_examples=200)
def test_retention_never_deletes_the_newest_or_the_last_good_one(
    rows: list[tuple[int, int, bool | None]], keep: int
) -> None:
    visible = list({(s, a): committed(s, a, healthy=h) for s, a, h in rows}.values())
    kept = {each.ref for each in visible} - {each.ref for each in expendable(visible, keep=keep)}
    assert len(kept) >= min(keep, len(visible))
    assert max((each.ref for each in visible), default=None) == max(kept, default=None)
    good = [each.ref for each in visible if each.healthy is not False]
    assert not good or max(good) in kept


def test_the_resume_order_is_read_or_refused() -> None:
    assert parse_resume("none") is None
    assert parse_resume("300:2") == CheckpointRef(300, 2)
    for text in ("", "300", "300:", ":2", "-1:2", "newest"):
        with pytest.raises(ValueError, match="neither"):
            parse_resume(text)
