# SPDX-License-Identifier: Apache-2.0
"""Batches come out of any kind of loader alike, and only as many are loaded as the loader makes necessary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.training.batches import END, fetcher, is_indexed, is_read_through


class Boundless:
    """Index access only, ends by IndexError; keeps what was loaded."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.loaded: list[int] = []

    def __getitem__(self, index: int) -> int:
        if index >= self.length:
            raise IndexError(index)
        self.loaded.append(index)
        return index


class Seeking:
    """Can be started anywhere; keeps where."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.started: list[int] = []

    def iter_from(self, index: int) -> Iterator[int]:
        self.started.append(index)
        return iter(range(index, self.length))


class LikeIterableDataset:
    """Iterates, and inherits an index access that only raises."""

    def __getitem__(self, index: int) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@given(st.lists(st.integers(0, 59), unique=True).map(sorted), st.integers(0, 60))
@settings(max_examples=100)
def test_all_kinds_of_loader_give_the_same_batches(wanted: list[int], length: int) -> None:
    expected = [position if position < length else END for position in wanted]
    for loader in (list(range(length)), Boundless(length), Seeking(length), iter(range(length))):
        fetch = fetcher(loader)
        assert [fetch(position) for position in wanted] == expected


def test_an_indexed_loader_never_loads_a_skipped_batch() -> None:
    loader = Boundless(100)
    fetch = fetcher(loader)
    assert [fetch(position) for position in (0, 1, 50, 51)] == loader.loaded == [0, 1, 50, 51]


def test_a_seekable_loader_is_started_anew_only_behind_a_gap() -> None:
    loader = Seeking(100)
    fetch = fetcher(loader)
    assert [fetch(position) for position in (3, 4, 5, 20, 21)] == [3, 4, 5, 20, 21]
    assert loader.started == [3, 20]


def test_an_error_inside_a_loader_with_a_length_is_not_taken_for_its_end() -> None:
    class Broken:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            raise IndexError("a bug of the loader")

    fetch = fetcher(Broken())
    with pytest.raises(IndexError, match="a bug of the loader"):
        fetch(0)


def test_an_iterable_dataset_is_iterated_although_it_has_getitem() -> None:
    loader = LikeIterableDataset()
    assert not is_indexed(loader) and is_read_through(loader)
    assert fetcher(loader)(4) == 4


def test_what_cannot_be_read_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match="not int"):
        fetcher(3)  # type: ignore[arg-type]  # the wrong type is the point
