# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tensors on devices, whose work runs as late as it may: the order is right, memory is pinned and let go.

`benchmarks.gpu_checkpoint` shows the same, and how fast, where there is a GPU.
"""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch

from checkpoint.api import CheckpointRef, open_catalogue
from checkpoint.copying import Copier
from checkpoint.cuda import CUDA
from checkpoint.events import EventLog
from checkpoint.launch import Identity
from checkpoint.record import Notes
from checkpoint.saver import Manner, Saver, Surroundings
from checkpoint.slab import PAGE_BYTES, Word, memory_folder
from checkpoint.slots import SlotPair
from checkpoint.snapshot import Sight, Surveyor
from checkpoint.stores import open_store
from checkpoint.wire import Hello
from tests.checkpoint.devices import LateDevices
from tests.checkpoint.training import events_of


@pytest.fixture
def devices() -> LateDevices:
    return LateDevices()


@pytest.fixture
def copier(devices: LateDevices) -> Iterator[Copier]:
    made = Copier(2, devices)
    yield made
    made.close()


@pytest.fixture
def slots(copier: Copier, tmp_path: Path) -> Iterator[SlotPair]:
    pair = SlotPair(lambda index: tmp_path / f"{index}.slab", 0, copier)
    yield pair
    pair.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def image(slots: SlotPair, index: int = 0) -> bytes:
    memory = slots.slab(index).memory
    return bytes(memory[PAGE_BYTES : len(memory)])


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def test_a_snapshot_has_the_values_of_before_the_next_update_on_every_device(
    devices: LateDevices, copier: Copier
) -> None:
    tensors = [devices.place(torch.full((1000,), -1.0), index) for index in (0, 1)]
    on_host = torch.full((1000,), 2.0)
    target = torch.zeros(3 * 4000, dtype=torch.uint8)
    for value, tensor in enumerate(tensors):
        devices.queue(tensor, lambda tensor=tensor, value=value: tensor.fill_(value))  # type: ignore[misc]
    copy = copier.start(target, [0, 4000, 8000], [*tensors, on_host], join=False)
    copy.hold()
    on_host.fill_(9)
    for tensor in tensors:
        devices.queue(tensor, lambda tensor=tensor: tensor.fill_(9))  # type: ignore[misc]
    for stream in devices.current.values():
        stream.run()
    copy.wait()
    assert [bits(part) for part in target.view(torch.float32).view(3, 1000)] == [
        bits(torch.full((1000,), float(value))) for value in range(3)
    ]
    assert all(tensor.eq(9).all() for tensor in tensors)


def test_waiting_for_a_copy_waits_for_every_device(devices: LateDevices, copier: Copier) -> None:
    tensors = [devices.place(torch.full((10,), index + 1.0), index) for index in (0, 1)]
    target = torch.zeros(80, dtype=torch.uint8)
    copier.start(target, [0, 40], tensors, join=True).wait()
    assert target.view(torch.float32).tolist() == [1.0] * 10 + [2.0] * 10


def test_nothing_writes_to_a_slot_whose_save_a_full_device_has_ended(devices: LateDevices, copier: Copier) -> None:
    tensors = [devices.place(torch.full((10,), index + 1.0), index) for index in (0, 1)]
    devices.full.add(torch.device("cuda", 1))
    target = torch.zeros(80, dtype=torch.uint8)
    with pytest.raises(torch.OutOfMemoryError, match="cuda:1 is full"):
        copier.start(target, [0, 40], tensors, join=True)
    target.zero_()
    for stream in (*devices.side.values(), *devices.current.values()):
        stream.run()
    assert not target.any()


def look(*tensors: torch.Tensor) -> Sight:
    return Surveyor(0, 1).look({"tensors": list(tensors)})


def test_slabs_are_pinned_once_and_let_go_with_the_memory(devices: LateDevices, slots: SlotPair) -> None:
    sight = look(devices.place(torch.ones(100), 1))
    slots.prepare(sight)
    lengths = [PAGE_BYTES + slots.slab(index).capacity for index in (0, 1)]
    assert [*devices.pinned.values()] == [(length, torch.device("cuda", 1)) for length in lengths]
    slots.prepare(sight)
    slots.fill(0, sight, join=True).wait()
    assert len(devices.pinned) == 2
    slots.close(remove=True)
    assert devices.pinned == {}


def test_a_slab_that_grows_is_pinned_anew(devices: LateDevices, slots: SlotPair) -> None:
    slots.prepare(look(devices.place(torch.ones(100), 0)))
    grown = look(devices.place(torch.full((1_000_000,), 3.0), 0))
    slots.fill(1, grown, join=True).wait()
    lengths = {PAGE_BYTES + slots.slab(index).capacity for index in (0, 1)}
    assert {length for length, _ in devices.pinned.values()} == lengths and len(lengths) == 2
    assert bits(grown.sources[0]) in image(slots, 1)


def test_memory_that_cannot_be_pinned_serves_all_the_same(
    devices: LateDevices, slots: SlotPair, caplog: pytest.LogCaptureFixture
) -> None:
    devices.refuses = True
    sight = look(devices.place(torch.arange(100.0), 0))
    slots.prepare(sight)
    for _ in range(3):
        slots.fill(0, sight, join=True).wait()
    slots.seal(0, sight, CheckpointRef(1, 1), Notes("", None, (), None), launch="a", serial=1, world_size=1)
    assert bits(sight.sources[0]) in image(slots) and slots.slab(0).word is Word.FILLING
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("cannot be pinned" in each and "not permitted" in each for each in told)


def test_a_device_that_fails_leaves_no_memory_behind(
    devices: LateDevices, slots: SlotPair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slots.prepare(look(devices.place(torch.ones(100), 0)))
    devices.refuses = True
    slots.close(remove=True)
    assert list(tmp_path.iterdir()) == []
    assert caplog.text.count("stays pinned until this process ends") == 2


def test_tensors_in_the_processors_memory_touch_no_device(devices: LateDevices, slots: SlotPair) -> None:
    slots.prepare(look(torch.ones(100)))
    assert devices.pinned == {} and devices.side == {}
    assert CUDA.device_of(torch.ones(1)) is None


def test_a_copy_keeps_a_source_that_has_no_other_user_until_it_is_over() -> None:
    copier, may_go_on = Copier(1), Event()
    pool: ThreadPoolExecutor = copier._pool
    pool.submit(may_go_on.wait, 60)
    source = torch.full((1000,), 5.0)
    ends = weakref.ref(source)
    target = torch.zeros(4000, dtype=torch.uint8)
    copy = copier.start(target, [0], [source], join=False)
    del source
    gc.collect()
    assert ends() is not None
    may_go_on.set()
    copy.wait()
    copier.close()
    gc.collect()
    assert ends() is None and target.view(torch.float32).eq(5).all()


@pytest.fixture
def saver(devices: LateDevices, tmp_path: Path) -> Iterator[Saver]:
    store = open_store(str(tmp_path / "store"))
    me = Identity(0, 1, 1, "token")
    events = str(tmp_path / "events")
    hello = Hello(store.location, me.token, me.attempt, 0, 1, (9, None), 60.0, events, None, os.getpid())
    folder = memory_folder(os.environ)
    made = Saver(
        hello,
        me,
        EventLog(events, rank=0, attempt=1),
        Surroundings(0, 1, "thread", 0.0),
        folder,
        store=store,
        devices=devices,
        when_committed=lambda _stall, _write: None,
    )
    yield made
    made.close()
    assert list(folder.glob("*.slab")) == [] and devices.pinned == {}


def save(saver: Saver, step: int, tensor: torch.Tensor, *, overlap: bool) -> None:
    notes = Notes("", None, (), None)
    manner = Manner(must=True, overlap=overlap)
    saver.save(CheckpointRef(step, 1), {"x": tensor}, notes, manner=manner, began=time.monotonic())


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", ["kernel", "memory"])
def test_a_device_that_fails_costs_the_save_and_ends_no_training(
    devices: LateDevices, saver: Saver, tmp_path: Path, overlap: bool, kind: str
) -> None:
    tensor = devices.place(torch.arange(1000.0), 1)
    if kind == "kernel":
        devices.failure = "CUDA error: device-side assert triggered"
    else:
        devices.full.add(torch.device("cuda", 1))
    save(saver, 1, tensor, overlap=overlap)
    saver.wait()
    devices.failure = ""
    devices.full.clear()
    save(saver, 2, tensor, overlap=overlap)
    saver.wait()
    catalogue = open_catalogue(str(tmp_path / "store"))
    assert [each.step for each in catalogue.committed()] == [2]
    assert catalogue.verify(CheckpointRef(2, 1)) == []
    (lost,) = [each for each in events_of(tmp_path / "events") if each["event"] == "save_failed"]
    assert lost["step"] == 1 and ("assert" in lost["message"] or "full" in lost["message"])
