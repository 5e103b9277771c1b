# SPDX-License-Identifier: Apache-2.0
"""Two slots: a slow store never blocks a save, and what the writer says reaches the training."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint import Checkpointer
from checkpoint.api import CheckpointError, open_catalogue
from checkpoint.saver import Surroundings
from checkpoint.stores import open_store
from tests.checkpoint.faulty import FaultyStore
from tests.checkpoint.training import events_of, fresh_state, train


class SlowStore(FaultyStore):
    """Takes no buffer before it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(open_store(str(folder)))
        self.may_go_on = threading.Event()
        self.before = self._hold

    def _hold(self, what: str, _count: int) -> None:
        if what.startswith("put"):
            assert self.may_go_on.wait(60)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowStore]:
    store = SlowStore(tmp_path / "store")
    yield store
    store.may_go_on.set()


def steps(folder: Path) -> list[int]:
    return [each.step for each in open_catalogue(str(folder / "store")).committed()]


def test_a_save_that_finds_both_slots_busy_is_skipped_and_counted(
    slow: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    with Checkpointer(tmp_path / "store", store=slow) as checkpointer:
        for step in range(1, 6):
            checkpointer.save(step, {"x": torch.full((5,), float(step))})
        assert checkpointer.skipped == 3
        slow.may_go_on.set()
    assert steps(tmp_path) == [1, 2]
    skipped = [
        (each["step"], each["skipped"]) for each in events_of(tmp_path / "events") if each["event"] == "skipped_save"
    ]
    assert skipped == [(3, 1), (4, 2), (5, 3)]


class StopAsked:
    """A training client that was asked to stop."""

    position, skipped, loss_healthy, should_stop = 0, (), None, True

    def phase(self, name: str) -> Any:
        return threading.Lock()


@pytest.mark.parametrize("run", [None, StopAsked()])
def test_a_save_that_must_be_waits_for_a_slot(slow: SlowStore, tmp_path: Path, run: StopAsked | None) -> None:
    with Checkpointer(tmp_path / "store", store=slow, run=run) as checkpointer:
        checkpointer.save(1, {"x": 1})
        checkpointer.save(2, {"x": 2})
        threading.Timer(0.05, slow.may_go_on.set).start()
        checkpointer.save(3, {"x": 3}, wait=run is None)
    assert steps(tmp_path) == [1, 2, 3]


def test_an_overlapping_save_takes_the_state_as_it_was(tmp_path: Path) -> None:
    state = {"x": torch.zeros(3_000_000), "y": torch.zeros(4, 5).t()}
    with Checkpointer(tmp_path / "store") as checkpointer:
        for step in range(1, 4):
            checkpointer.save(step, state, overlap=True)
            checkpointer.before_update()
            state["x"] += 1
            state["y"] += 1
            checkpointer.wait()
    found = {"x": torch.ones(3_000_000), "y": torch.ones(5, 4)}
    with Checkpointer(tmp_path / "store") as checkpointer:
        assert checkpointer.restore(found) == 3
    assert found["x"].eq(2).all() and found["y"].eq(2).all()


def test_a_state_that_changes_its_shape_is_laid_out_anew(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "store", keep=9) as checkpointer:
        for step, width in enumerate((10, 500_000, 3, 3), 1):
            checkpointer.save(step, {"x": torch.full((width,), float(step)), "text": "x" * width}, wait=True)
            found: dict[str, Any] = {"x": torch.zeros(width), "text": ""}
            checkpointer.restore(found)
            assert found["x"].eq(step).all() and found["text"] == "x" * width
    catalogue = open_catalogue(str(tmp_path / "store"))
    assert all(catalogue.verify(each.ref) == [] for each in catalogue.committed())


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3, dtype=torch.bfloat16),
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(2, 0, 3),
        torch.tensor(7.0),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(6)[::2],
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(3).expand(4, 3),
    ],
    ids=["bfloat16", "transposed", "empty", "scalar", "conjugate", "strided", "parameter", "expanded"],
)
def test_every_kind_of_dense_tensor_comes_back(tmp_path: Path, value: torch.Tensor) -> None:
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save(1, {"value": value})
        found = {"value": torch.full(value.shape, 5, dtype=value.dtype)}
        checkpointer.restore(found)
    assert torch.equal(found["value"], value.detach().resolve_conj())


def refuse(*_arguments: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_slab_that_has_to_grow_after_a_failed_write_is_written(tmp_path: Path) -> None:
    store = FaultyStore(open_store(str(tmp_path / "store")))
    with Checkpointer(tmp_path / "store", store=store) as checkpointer:
        checkpointer.save(1, {"x": torch.ones(400_000)}, wait=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.pwrite", refuse)
            checkpointer.save(2, {"x": torch.ones(400_000)}, wait=True)
            checkpointer.save(3, {"x": torch.ones(400_000)}, wait=True)
        checkpointer.save(4, {"x": torch.ones(4_000_000)}, wait=True)
        checkpointer.save(5, {"x": torch.ones(4_000_000)}, wait=True)
    assert steps(tmp_path) == [1, 4, 5]


def test_memory_is_taken_for_moments_that_a_fresh_optimizer_has_not_made(tmp_path: Path) -> None:
    state = fresh_state(0, width=5000)
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.restore(state)
        before = checkpointer._saver._slots.slab(0).capacity
        train(state, 1)
        checkpointer.save(1, state)
        assert checkpointer._saver._slots.slab(0).capacity == before


def test_memory_is_given_back_and_no_tensor_takes_a_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_MEMORY", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save(1, {"tensors": [torch.zeros(10) for _ in range(500)]}, wait=True)
        assert len(list(tmp_path.glob("*/*.slab"))) == 2
        assert len(os.listdir("/proc/self/fd")) < before + 30  # noqa: PTH208
    assert list(tmp_path.glob("*/*.slab")) == []


def test_a_folder_without_room_gives_way_to_unnamed_memory(
    full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CHECKPOINT_MEMORY", str(full_disk))
    state = {"x": torch.ones(1_000_000)}
    with Checkpointer(tmp_path / "store") as checkpointer:
        checkpointer.save(1, state)
    assert steps(tmp_path) == [1]
    assert "set CHECKPOINT_MEMORY to another folder" in caplog.text


@pytest.mark.parametrize(("name", "value"), [("CHECKPOINT_WRITER", "fork"), ("CHECKPOINT_LINGER_S", "long")])
def test_surroundings_that_make_no_sense_are_named(name: str, value: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        Surroundings.from_environment({name: value})
