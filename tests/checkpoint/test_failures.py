# SPDX-License-Identifier: Apache-2.0
"""A store that fails, at every single change that a save makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint import Checkpointer
from checkpoint.api import CheckpointRef, open_catalogue
from checkpoint.plan import RankPlan, encode_plan
from checkpoint.stores import open_store
from tests.checkpoint.faulty import FaultyStore
from tests.checkpoint.training import events_of


def state_of(step: int) -> dict[str, Any]:
    return {"tensor": torch.full((300,), float(step)), "step": step}


def changes_of_one_save(folder: Path) -> int:
    store = FaultyStore(open_store(str(folder)))
    with Checkpointer(folder, keep=1, store=store) as checkpointer:
        checkpointer.save(1, state_of(1), wait=True)
        store.changes = 0
        checkpointer.save(2, state_of(2), wait=True)
    return store.changes


def test_a_full_disk_at_any_change_leaves_the_previous_checkpoint_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = changes_of_one_save(tmp_path / "count")
    assert total >= 10
    failed = 0
    for count in range(1, total + 1):
        folder, events = tmp_path / f"store-{count}", tmp_path / f"events-{count}"
        monkeypatch.setenv("CHECKPOINT_EVENTS", str(events))
        store = FaultyStore(open_store(str(folder)))
        with Checkpointer(folder, keep=1, store=store) as checkpointer:
            checkpointer.save(1, state_of(1), wait=True)
            store.fail_at(count)
            checkpointer.save(2, state_of(2), wait=True)
            store.heal()
            found = open_catalogue(str(folder)).committed()
            has_failed = any(each["event"] == "save_failed" for each in events_of(events))
            failed += has_failed
            assert [each.step for each in found][-1] == (1 if has_failed else 2)
            assert open_catalogue(str(folder)).verify(found[-1].ref) == []
            checkpointer.save(3, state_of(3), wait=True)
        state = state_of(0)
        assert Checkpointer(folder).restore(state) == 3
        assert state["step"] == 3 and state["tensor"].eq(3).all()
        assert {path.name for path in folder.iterdir()} == {"FENCE.json", "step-000000000003-a1"}
    # Only the few changes of retention, after the rename, may fail without failing the save.
    assert total - failed <= 4


def test_the_cause_of_a_failed_save_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    store = FaultyStore(open_store(str(tmp_path / "store")))
    with Checkpointer(tmp_path / "store", store=store) as checkpointer:
        store.fail_at(4)
        checkpointer.save(1, state_of(1), wait=True)
    (event,) = [each for each in events_of(tmp_path / "events") if each["event"] == "save_failed"]
    assert event["step"] == 1 and "No space left on device" in event["message"]


def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("CHECKPOINT_ATTEMPT", "1")


def test_a_missing_rank_fails_the_save_by_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_ranks(monkeypatch)
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    with Checkpointer(tmp_path / "store", deadline_s=0.05) as checkpointer:
        checkpointer.save(1, state_of(1), wait=True)
    (event,) = [each for each in events_of(tmp_path / "events") if each["event"] == "save_failed"]
    assert "rank 1 did not write its part of step 1 of attempt 1" in event["message"]
    assert list((tmp_path / "store").glob("step-*")) == []


@pytest.mark.parametrize(("launch", "serial"), [("another launch", 1), (None, 7)])
def test_a_plan_of_another_launch_or_save_is_not_taken_for_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: str | None, serial: int
) -> None:
    two_ranks(monkeypatch)
    folder = tmp_path / "step-000000000001-a1.tmp"
    with Checkpointer(tmp_path, deadline_s=0.05) as checkpointer:
        folder.mkdir()
        stale = RankPlan(launch or checkpointer._me.token, serial, 1, 2)
        (folder / "plan-1.json").write_bytes(encode_plan(stale))
        checkpointer.save(1, state_of(1), wait=True)
    assert open_catalogue(str(tmp_path)).committed() == []


def test_a_failure_ends_the_wait_for_other_ranks_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_ranks(monkeypatch)
    monkeypatch.setattr("checkpoint.checkpointer._GRACE_ON_ERROR_S", 0.05)

    def crash_after_a_save() -> None:
        with Checkpointer(tmp_path, deadline_s=3600) as checkpointer:
            checkpointer.save(1, state_of(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash_after_a_save()
    assert open_catalogue(str(tmp_path)).all_entries() == []


def test_a_committed_folder_is_never_written_into(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state_of(1), wait=True)
        checkpointer.save(2, state_of(2), wait=True)
        checkpointer.save(1, state_of(7), wait=True)
    assert open_catalogue(str(tmp_path)).verify(CheckpointRef(1, 1)) == []
    state = state_of(0)
    (tmp_path / "step-000000000002-a1" / "manifest.json").unlink()
    assert Checkpointer(tmp_path).restore(state) == 1
    assert state["step"] == 1
