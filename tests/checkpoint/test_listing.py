# SPDX-License-Identifier: Apache-2.0
"""How what a node holds in memory is shown."""

from __future__ import annotations

from checkpoint.api import CheckpointRef
from checkpoint.held import HeldImage
from checkpoint.listing import COLUMNS, held_as_row, snapshots_of
from checkpoint.manifest import FileRecord


def image(rank: int, *, step: int = 10, launch: str = "one", is_replica: bool = False) -> HeldImage:
    return HeldImage(CheckpointRef(step, 1), launch, step, rank, 4, f"/slab-{rank}", FileRecord(1024, "x"), is_replica)


def test_a_node_without_every_part_is_not_whole_alone() -> None:
    (row,) = (held_as_row(each) for each in snapshots_of([image(0), image(2)]))
    shown = dict(zip(COLUMNS, row, strict=True))
    assert shown["whole"] == "no" and shown["folder"] == "ranks 0, 2 of 4" and shown["size"] == "2.0 KiB"


def test_own_parts_and_replicas_together_are_whole() -> None:
    parts = [image(0), image(1), image(2, is_replica=True), image(3, is_replica=True)]
    (held,) = snapshots_of(parts)
    assert held.is_whole and held_as_row(held)[-1] == "ranks 0-1, replicas of ranks 2-3 of 4"


def test_parts_of_two_launches_are_two_snapshots() -> None:
    both = snapshots_of([image(0), image(0, launch="two"), image(0, step=9)])
    assert [each.ref.step for each in both] == [9, 10, 10] and not any(each.is_whole for each in both)
