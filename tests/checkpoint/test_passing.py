# SPDX-License-Identifier: Apache-2.0
"""Who reads which file of a checkpoint, and which bytes go from rank to rank."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.passing import Extent, Reach, chain_of, encode_needs, parcels_of, share_files

lengths = st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 40 << 20)), max_size=12)


def laid_out(gaps_and_lengths: list[tuple[int, int]]) -> list[Extent]:
    extents, at = [], 0
    for gap, length in gaps_and_lengths:
        extents.append(Extent(at + gap, length))
        at += gap + length
    return extents


@st.composite
def files(draw: st.DrawFn) -> tuple[list[Extent], dict[int, set[Extent]]]:
    extents = laid_out(draw(lengths))
    size = draw(st.integers(1, 6))
    wanted = st.sets(st.sampled_from(extents)) if extents else st.just(set[Extent]())
    return extents, {rank: draw(wanted) for rank in range(size)}


@given(files())
@settings(max_examples=150)
def test_every_rank_gets_just_what_it_needs_and_once(drawn: tuple[list[Extent], dict[int, set[Extent]]]) -> None:
    extents, needed = drawn
    parcels = parcels_of(extents, {rank: encode_needs(extents, each) for rank, each in needed.items()})
    for rank, wanted in needed.items():
        got = [extent for parcel in parcels if rank in parcel.ranks for extent in parcel.extents]
        assert got == sorted(wanted)


@given(files())
@settings(max_examples=150)
def test_parcels_lie_one_behind_the_other_and_only_a_single_piece_may_be_large(
    drawn: tuple[list[Extent], dict[int, set[Extent]]],
) -> None:
    extents, needed = drawn
    parcels = parcels_of(extents, {rank: encode_needs(extents, each) for rank, each in needed.items()})
    for before, after in pairwise(parcels):
        assert before.start + before.length <= after.start
    for parcel in parcels:
        assert len(parcel.extents) == 1 or parcel.length <= 32 << 20
        assert parcel.length - sum(extent.length for extent in parcel.extents) <= 4096 * len(parcel.extents)


def test_neighbours_that_the_same_ranks_need_go_together() -> None:
    extents = laid_out([(0, 100), (28, 100), (28, 100), (1 << 20, 100)])
    every = encode_needs(extents, extents)
    (first, second) = parcels_of(extents, {0: every, 1: every})
    assert (first.start, first.length, first.ranks) == (0, 356, (0, 1))
    assert second.extents == (extents[3],)


def test_a_parcel_goes_from_its_reader_through_those_that_have_not_the_file_at_hand() -> None:
    extents = laid_out([(0, 10)])
    every = encode_needs(extents, extents)
    (parcel,) = parcels_of(extents, dict.fromkeys(range(5), every))
    assert chain_of(parcel, Reach(3, frozenset({3}))) == (3, 0, 1, 2, 4)
    assert chain_of(parcel, Reach(2, frozenset({2, 3}))) == (2, 0, 1, 4)
    (parcel,) = parcels_of(extents, {1: every})
    assert chain_of(parcel, Reach(0, frozenset({0}))) == (0, 1)


def test_ranks_of_a_world_of_the_same_size_read_their_own_files() -> None:
    names = [f"__{rank}_0.distcp" for rank in range(12)]
    assert [share_files(names, 12)[name].reader for name in names] == list(range(12))


def test_files_of_another_world_are_spread_over_all_ranks() -> None:
    names = [f"__{rank}_0.distcp" for rank in range(4)]
    assert [share_files(names, 2)[name].reader for name in names] == [0, 0, 1, 1]
    assert [share_files(names, 16)[name].reader for name in names] == [0, 4, 8, 12]


def test_thousands_of_ranks_that_need_the_same_cost_no_more_than_a_few() -> None:
    extents = laid_out([(0, 1 << 20)] * 5000)
    every = encode_needs(extents, extents)
    began = time.process_time()
    parcels = parcels_of(extents, dict.fromkeys(range(16_000), every))
    assert len(parcels) == 157 and len(parcels[0].ranks) == 16_000
    assert time.process_time() - began < 5
