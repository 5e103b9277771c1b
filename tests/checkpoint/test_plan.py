# SPDX-License-Identifier: Apache-2.0
"""The ranks' plans: fair shares, a merge that refuses gaps, and their file form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.manifest import FileRecord
from checkpoint.plan import (
    LeafPath,
    PlanError,
    RankPlan,
    TensorFacts,
    WrittenItem,
    decode_paths,
    decode_plan,
    encode_paths,
    encode_plan,
    merge,
    share_out,
)

TENSOR = TensorFacts("float32", (4, 2))
PATHS = {"w": LeafPath(("w",)), "o.0.s": LeafPath(("o", 0, "s"), frozenset({1}))}


def half(rank: int) -> RankPlan:
    """A rank that wrote its half of the tensor `w`; rank 0 wrote the pickled leaf too."""
    file = f"__{rank}_0.distcp"
    items = [WrittenItem("w", file, 0, 10, (2 * rank, 0), (2, 2))]
    if rank == 0:
        items.append(WrittenItem("o.0.s", file, 10, 3))
    return RankPlan("launch", 1, rank, 2, "", {file: FileRecord(13, "ab")}, {"w": TENSOR}, PATHS, items)


def test_plans_that_cover_everything_merge() -> None:
    merged = merge([half(0), half(1)])
    assert set(merged.files) == {"__0_0.distcp", "__1_0.distcp"}
    assert [(item.fqn, item.offsets) for item in merged.items] == [("w", (0, 0)), ("o.0.s", None), ("w", (2, 0))]


@pytest.mark.parametrize(
    ("title", "plans", "message"),
    [
        ("a shard is missing", [half(0), replace(half(1), items=[])], r"1 parts .* \(w\)"),
        ("a pickled leaf is missing", [replace(half(0), items=half(0).items[:1]), half(1)], r"\(o\.0\.s\)"),
        ("a shard came twice", [half(0), replace(half(0), rank=1)], "two ranks wrote w"),
        ("a rank failed", [half(0), replace(half(1), error="disk full")], "rank 1: disk full"),
        (
            "ranks disagree on a tensor",
            [half(0), replace(half(1), tensors={"w": TensorFacts("float16", (4, 2))})],
            "ranks disagree on w",
        ),
    ],
)
def test_plans_with_a_gap_are_refused(title: str, plans: list[RankPlan], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        merge(plans)


def test_a_plan_survives_its_file() -> None:
    plan = half(0)
    assert decode_plan(encode_plan(plan)) == plan
    assert decode_paths(encode_paths(PATHS)) == PATHS
    with pytest.raises(ValueError, match="missing or of the wrong type"):
        decode_plan(b"{}")


@given(st.dictionaries(st.text(max_size=5), st.integers(0, 10**9), max_size=30), st.integers(1, 8))
@settings(max_examples=100)
def test_shares_are_even_and_the_same_on_every_rank(sizes: dict[str, int], world_size: int) -> None:
    owner = share_out(sizes, world_size)
    assert owner == share_out(dict(reversed(sizes.items())), world_size)
    assert owner.keys() == sizes.keys() and set(owner.values()) <= set(range(world_size))
    loads = [sum(size for name, size in sizes.items() if owner[name] == rank) for rank in range(world_size)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)
