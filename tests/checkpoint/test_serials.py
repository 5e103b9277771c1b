# SPDX-License-Identifier: Apache-2.0
"""Saves of several ranks find each other by number, also after a save that one rank never knew of."""

from __future__ import annotations

from pathlib import Path

import torch

from checkpoint.api import open_catalogue
from tests.checkpoint.pair import pair, save_on_both
from tests.checkpoint.training import events_of


def committed(folder: Path) -> list[int]:
    return [each.step for each in open_catalogue(str(folder)).committed()]


def test_a_rank_that_misses_a_save_has_its_part_in_the_next(tmp_path: Path) -> None:
    state = {"x": torch.ones(10), "y": torch.ones(10)}
    with pair(tmp_path / "store", attempt=1, events=tmp_path / "events", deadline_s=0.1) as ranks:
        save_on_both(ranks, 10, state)
        ranks[0].save(20, state, wait=True)
        save_on_both(ranks, 30, state)
    assert committed(tmp_path / "store") == [10, 30]
    (failed,) = [each for each in events_of(tmp_path / "events") if each["event"] == "save_failed"]
    assert "rank 1 did not write its part of step 20" in failed["message"]


def test_a_rank_that_hears_too_late_of_a_save_ends_the_wait_for_it(tmp_path: Path) -> None:
    state = {"x": torch.ones(10), "y": torch.ones(10)}
    with pair(tmp_path / "store", attempt=1, events=tmp_path / "events", deadline_s=3600) as ranks:
        ranks[1]._saver.miss(20, "learned too late of it")
        ranks[0].save(20, state, wait=True)
        save_on_both(ranks, 30, state)
    assert committed(tmp_path / "store") == [30]
    (failed,) = [each for each in events_of(tmp_path / "events") if each["event"] == "save_failed"]
    assert "rank 1 learned too late of it" in failed["message"]


def test_steps_that_come_again_after_a_restore_are_saves_of_their_own(tmp_path: Path) -> None:
    with pair(tmp_path / "store", attempt=1, deadline_s=3600, keep=9) as ranks:
        for step in (10, 20):
            save_on_both(ranks, step, {"x": torch.full((10,), float(step)), "y": torch.ones(10)})
        for step in (15, 25):
            save_on_both(ranks, step, {"x": torch.full((10,), float(step)), "y": torch.ones(10)})
    assert committed(tmp_path / "store") == [10, 15, 20, 25]
