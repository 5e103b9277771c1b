# SPDX-License-Identifier: Apache-2.0
"""Restoring from snapshots in memory: which are whole, and that damage there only costs the way to the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from checkpoint import Checkpointer
from checkpoint.api import CheckpointRef
from checkpoint.catalogue import Catalogue
from checkpoint.choose import MEMORY, STORE, Choice, choose
from checkpoint.held import HeldImage
from checkpoint.launch import Identity, Orders
from checkpoint.manifest import FileRecord
from checkpoint.memory_tier import whole_snapshots
from checkpoint.ranks import Ranks
from checkpoint.record import decode_record
from checkpoint.slab import Slab
from checkpoint.stores import open_store
from tests.checkpoint.training import fresh_state, train


def image(rank: int, *, step: int = 10, serial: int = 10, content: str = "x", launch: str = "one") -> HeldImage:
    return HeldImage(CheckpointRef(step, 1), launch, serial, rank, 2, f"/slab-{rank}", FileRecord(7, content), False)


def test_a_snapshot_is_whole_when_the_nodes_together_hold_every_part() -> None:
    snapshots = whole_snapshots([[image(0)], [image(0), image(1)]])
    assert snapshots.keys() == {CheckpointRef(10, 1)}
    assert snapshots[CheckpointRef(10, 1)].holders == {"__0_0.distcp": {0, 1}, "__1_0.distcp": {1}}


@pytest.mark.parametrize(
    "held",
    [
        [[image(0)], []],
        [[image(0)], [image(1, serial=11)]],
        [[image(0)], [image(1, launch="another")]],
        [[image(0)], [image(1, step=20)]],
        [[image(0), image(1)], [image(1, content="y")]],
    ],
    ids=["a part is nowhere", "of another save", "of another launch", "of another step", "two versions of a part"],
)
def test_what_is_not_of_one_save_is_no_snapshot(held: list[list[HeldImage]]) -> None:
    assert whole_snapshots(held) == {}


def test_of_two_saves_of_one_step_the_later_one_counts() -> None:
    again = [image(0, serial=12, content="z"), image(1, serial=12, content="z")]
    assert whole_snapshots([[image(0), image(1), *again]])[CheckpointRef(10, 1)].serial == 12


def held_by(checkpointer: Checkpointer) -> HeldImage:
    """What a writer would say of the newest snapshot."""
    slabs = [slot.slab for slot in checkpointer._saver._slots._slots if slot.slab.record]
    slab = max(slabs, key=lambda each: decode_record(each.record).plan.serial)
    record = decode_record(slab.record)
    digest = xxhash.xxh3_128_hexdigest(slab.image[: slab.image_length])
    plan = record.plan
    file = FileRecord(slab.image_length, digest)
    return HeldImage(record.ref, plan.launch, plan.serial, plan.rank, plan.world_size, str(slab.path), file, False)


@pytest.fixture
def trained() -> dict[str, Any]:
    state = fresh_state(0)
    train(state, 4)
    return state


@pytest.fixture
def saved(tmp_path: Path, trained: dict[str, Any]) -> Iterator[Checkpointer]:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(4, trained, wait=True)
        yield checkpointer


def assert_same(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert torch.equal(mine["average"], theirs["average"]) and mine["notes"]["epoch"] == theirs["notes"]["epoch"]
    for here, there in zip(mine["model"].state_dict().values(), theirs["model"].state_dict().values(), strict=True):
        assert torch.equal(here, there)


def restored(folder: Path, held: list[HeldImage], *, attempt: int = 2) -> tuple[Choice, dict[str, Any]]:
    store = open_store(str(folder))
    orders = Orders.from_environment({})
    me = Identity(0, 1, attempt, "now")
    state = fresh_state(1)
    with ExitStack() as kept:
        choice = choose(store, Catalogue(store), orders, me, state, Ranks(0, 1, None), held=held, kept=kept)
        assert choice.restoration is not None
        choice.restoration.apply()
    return choice, state


def test_what_memory_holds_whole_is_not_read_from_the_store(
    tmp_path: Path, saved: Checkpointer, trained: dict[str, Any]
) -> None:
    held = held_by(saved)
    data = tmp_path / "step-000000000004-a1" / "__0_0.distcp"
    data.unlink()
    choice, state = restored(tmp_path, [held])
    assert (choice.ref, choice.tier, choice.rejected) == (CheckpointRef(4, 1), MEMORY, ())
    assert_same(state, trained)


def test_a_bit_that_flipped_in_memory_is_found_and_the_store_is_read_instead(
    tmp_path: Path, saved: Checkpointer, trained: dict[str, Any]
) -> None:
    held = held_by(saved)
    slab = Slab.attach(Path(held.slab))
    slab.memory[4096 + held.file.bytes // 2] ^= 1
    slab.close()
    choice, state = restored(tmp_path, [held])
    assert (choice.ref, choice.tier) == (CheckpointRef(4, 1), STORE)
    assert_same(state, trained)


@pytest.mark.parametrize("slab", ["/nowhere/slab", ""])
def test_a_slab_that_is_gone_costs_the_way_to_the_store(tmp_path: Path, saved: Checkpointer, slab: str) -> None:
    choice, _ = restored(tmp_path, [replace(held_by(saved), slab=slab)])
    assert (choice.ref, choice.tier) == (CheckpointRef(4, 1), STORE)


def test_a_snapshot_that_was_never_committed_is_taken_as_the_newest(
    tmp_path: Path, saved: Checkpointer, trained: dict[str, Any]
) -> None:
    train(trained, 2)
    saved.save(6, trained, wait=True)
    held = held_by(saved)
    Catalogue(open_store(str(tmp_path))).delete(CheckpointRef(6, 1))
    choice, state = restored(tmp_path, [held])
    assert (choice.ref, choice.tier) == (CheckpointRef(6, 1), MEMORY)
    assert_same(state, trained)


def test_one_of_memory_alone_that_is_damaged_is_passed_over_and_nothing_is_set_aside(
    tmp_path: Path, saved: Checkpointer, trained: dict[str, Any]
) -> None:
    saved.save(6, trained, wait=True)
    held = replace(held_by(saved), file=FileRecord(held_by(saved).file.bytes, "0" * 32))
    Catalogue(open_store(str(tmp_path))).delete(CheckpointRef(6, 1))
    choice, _ = restored(tmp_path, [held])
    assert (choice.ref, choice.tier, choice.rejected) == (CheckpointRef(4, 1), STORE, ())
    assert not list(tmp_path.glob("damaged-*"))
