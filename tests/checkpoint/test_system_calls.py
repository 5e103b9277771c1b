# SPDX-License-Identifier: Apache-2.0
"""Every open, write, fsync, rename, listing and removal of a save on a POSIX file system may fail or be the last."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint import Checkpointer
from checkpoint.api import open_catalogue
from checkpoint.stores import open_store
from tests.checkpoint.system_calls import SystemCalls, watched
from tests.checkpoint.training import events_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
_FLOATS = 400_000
"""More than a MiB, so that they are written past the page cache."""


def state_of(step: int) -> dict[str, Any]:
    return {"weights": torch.full((_FLOATS,), float(step)), "step": step}


def committed(folder: Path) -> list[int]:
    return [each.step for each in open_catalogue(str(folder)).committed()]


def demand_whole(folder: Path) -> None:
    """The next start restores the newest committed checkpoint as it was, saves, and leaves nothing else."""
    known, state = committed(folder), state_of(0)
    with Checkpointer(folder, keep=1) as checkpointer:
        assert checkpointer.restore(state) == known[-1] == state["step"]
        assert state["weights"].eq(known[-1]).all()
        checkpointer.save(9, state_of(9))
    left = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".partial"))
    assert committed(folder) == [9] and len(left) == 2, left


def save_with(calls: SystemCalls, folder: Path, number: int, *, is_crash: bool = False) -> list[str]:
    """Commit step 1, then save step 2 with the call of this number failing; the calls that were made for step 2."""
    store = open_store(str(folder))
    with Checkpointer(folder, keep=1, store=store) as checkpointer:
        checkpointer.save(1, state_of(1), wait=True)
        calls.arm(number, is_crash=is_crash)
        checkpointer.save(2, state_of(2), wait=True)
        seen = list(calls.seen)
        if not is_crash:
            calls.arm(0)
            known = committed(folder)
            checkpointer.save(3, state_of(3), wait=True)
            assert known[-1] in (1, 2) and committed(folder)[-1] == 3, seen[number - 1]
    calls.arm(0)
    return seen


@pytest.mark.parametrize("is_crash", [False, True], ids=["error", "crash"])
def test_every_system_call_of_a_save_may_go_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_crash: bool
) -> None:
    with watched(tmp_path / "count") as calls:
        names = save_with(calls, tmp_path / "count", 0)
    kinds = {name.split()[0] for name in names}
    assert kinds == {"open", "pwrite", "ftruncate", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir", "scandir"}
    for number in range(1, len(names) + 1):
        folder, events = tmp_path / str(number), tmp_path / f"{number}.events"
        monkeypatch.setenv("CHECKPOINT_EVENTS", str(events))
        with watched(folder) as calls, caplog.at_level(logging.WARNING):
            save_with(calls, folder, number, is_crash=is_crash)
        failed = [each for each in events_of(events) if each["event"] == "save_failed"]
        assert is_crash or "No space left on device" in caplog.text, names[number - 1]
        assert is_crash or all("No space left on device" in each["message"] for each in failed)
        assert all(each["step"] == 2 for each in failed)
        caplog.clear()
        demand_whole(folder)
