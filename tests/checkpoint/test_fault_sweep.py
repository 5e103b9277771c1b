# SPDX-License-Identifier: Apache-2.0
"""Whatever operation of the store goes wrong, as an error or as the last act of a process: nothing committed is lost.

The operations of an undisturbed life are counted; then each in turn goes wrong, in a store of its own.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint import Checkpointer
from checkpoint.api import CheckpointError, open_catalogue
from checkpoint.stores import open_store
from tests.checkpoint.pair import pair, save_on_both
from tests.checkpoint.sweeping import MESSAGE, Extent, Fault, SweptStore, worth_trying
from tests.checkpoint.training import events_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
extents = pytest.mark.parametrize("extent", Extent)


def state_of(step: int) -> dict[str, Any]:
    return {"a": torch.full((300,), float(step)), "b": torch.full((300,), step), "step": step}


def swept(folder: Path) -> SweptStore:
    return SweptStore(open_store(str(folder)))


def committed(folder: Path) -> list[int]:
    return [each.step for each in open_catalogue(str(folder)).committed()]


def demand_whole(folder: Path, *, least: int) -> None:
    """The next start restores the newest committed checkpoint, which is whole and of its own step, and clears up."""
    known = committed(folder)
    catalogue = open_catalogue(str(folder))
    assert known[-1] >= least
    assert all(catalogue.verify(each.ref) == [] for each in catalogue.committed())
    state = state_of(0)
    with Checkpointer(folder, keep=1) as checkpointer:
        assert checkpointer.restore(state) == known[-1] == state["step"]
        assert state["a"].eq(known[-1]).all() and state["b"].eq(known[-1]).all()
        checkpointer.save(9, state_of(9))
    assert committed(folder) == [9]
    left = {path.name for path in folder.iterdir() if not path.name.endswith(".partial")}
    assert left == {"FENCE.json", Path(catalogue.committed()[0].uri).name}


@extents
def test_every_operation_of_a_save_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extent: Extent) -> None:
    def save(store: SweptStore, fault: Fault | None) -> None:
        folder, events = Path(store.location), Path(f"{store.location}.events")
        monkeypatch.setenv("CHECKPOINT_EVENTS", str(events))
        with Checkpointer(folder, keep=1, store=store) as checkpointer:
            checkpointer.save(1, state_of(1), wait=True)
            store.arm(fault)
            checkpointer.save(2, state_of(2), wait=True)
            if fault is None:
                return
            assert store.has_struck
            failed = [each for each in events_of(events) if each["event"] == "save_failed"]
            assert all(MESSAGE in each["message"] for each in failed)
            # A rename that is done, and not known to last, is a failure that leaves a whole checkpoint.
            is_unsure = store.seen[fault.number - 1].startswith("rename step-") and extent is Extent.ALL
            assert committed(folder)[-1] == (2 if is_unsure or not failed else 1)
            checkpointer.save(3, state_of(3), wait=True)
            assert committed(folder)[-1] == 3
        demand_whole(folder, least=3)

    save(store := swept(tmp_path / "count"), None)
    names = list(store.seen)
    assert {name.split()[0] for name in names} == {"make", "put", "write", "list", "read", "rename", "remove"}
    for number in worth_trying(names, extent):
        save(swept(tmp_path / str(number)), Fault(extent, is_crash=False, number=number))


@extents
def test_every_operation_of_a_resumed_training_may_be_its_last(tmp_path: Path, extent: Extent) -> None:
    def live(store: SweptStore) -> None:
        with Checkpointer(store.location, keep=1, store=store) as checkpointer:
            checkpointer.restore(state_of(0))
            for step in (2, 3):
                checkpointer.save(step, state_of(step), wait=True)

    def begun(folder: Path) -> SweptStore:
        with Checkpointer(folder) as checkpointer:
            checkpointer.save(1, state_of(1))
        left = folder / "step-000000000007-a1.tmp"
        left.mkdir()
        (left / "__0_0.distcp").write_bytes(b"half")
        return swept(folder)

    store = begun(tmp_path / "count")
    live(store)
    names = list(store.seen)
    assert len(names) > 50
    for number in worth_trying(names, extent):
        store = begun(tmp_path / str(number))
        store.arm(Fault(extent, is_crash=True, number=number))
        with suppress(CheckpointError, OSError):
            live(store)
        assert store.has_struck
        demand_whole(Path(store.location), least=1)


def names_of_a_shared_save(folder: Path) -> list[str]:
    """The operations that two ranks do at least once in a save that they share."""
    store = swept(folder)
    with pair(folder, attempt=1, store=store, keep=1) as ranks:
        save_on_both(ranks, 1, state_of(1))
        store.arm(None)
        save_on_both(ranks, 2, state_of(2))
        return sorted(set(store.seen))


@extents
@pytest.mark.parametrize("is_crash", [False, True], ids=["error", "crash"])
def test_every_operation_of_a_save_of_two_ranks_may_go_wrong(tmp_path: Path, extent: Extent, is_crash: bool) -> None:
    names = names_of_a_shared_save(tmp_path / "count")
    assert len([name for name in names if "plan" in name or "__1_0" in name]) >= 3
    for number in worth_trying(names, extent):
        name = names[number - 1]
        folder, events = tmp_path / str(number), tmp_path / f"{number}.events"
        store = swept(folder)
        with pair(folder, attempt=1, events=events, store=store, keep=1, deadline_s=0.3) as ranks:
            save_on_both(ranks, 1, state_of(1))
            store.arm(Fault(extent, is_crash, name=name))
            save_on_both(ranks, 2, state_of(2))
            assert store.has_struck, name
            assert set(committed(folder)) & {1, 2}
            if not is_crash:
                failed = [each for each in events_of(events) if each["event"] == "save_failed"]
                assert 2 in committed(folder) or failed, name
                save_on_both(ranks, 3, state_of(3))
                assert committed(folder)[-1] == 3
        demand_whole(folder, least=1 if is_crash else 3)
