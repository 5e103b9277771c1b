# SPDX-License-Identifier: Apache-2.0
"""What a run that keeps its own checkpoints is resumed from, on folders like those of other programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from checkpoint.api import StoreError
from supervisor.controller.foreign import Saved, Whereabouts, as_checkpoints, chosen, saved
from supervisor.controller.foreign_watch import ForeignWatch
from supervisor.core.api import FOREIGN, Checkpoint, events

ZIP = b"PK\x03\x04" + bytes(40) + b"PK\x05\x06" + bytes(18)


def trainer(root: Path, step: int, model: bytes = ZIP) -> None:
    folder = root / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (folder / "pytorch_model.bin").write_bytes(model)


def steps(found: list[Saved] | None) -> list[int | None]:
    return [each.step for each in found or []]


@pytest.mark.parametrize(
    ("uri", "pattern"),
    [("out", None), (None, "out/checkpoint-*"), ("out", "checkpoint-*"), ("out", "out/checkpoint-*")],
)
def test_the_newest_whole_one_is_found_by_format_or_by_pattern(
    uri: str | None, pattern: str | None, tmp_path: Path
) -> None:
    for step in (900, 1000):
        trainer(tmp_path / "out", step)
    trainer(tmp_path / "out", 1100, ZIP[:-5])
    (tmp_path / "out" / "checkpoint-1200").mkdir()
    found = saved(Whereabouts(uri, pattern, str(tmp_path)))
    assert steps(found) == [900, 1000]
    assert found is not None and found[-1].path == str(tmp_path / "out" / "checkpoint-1000")
    assert as_checkpoints(found) == (Checkpoint(900, FOREIGN), Checkpoint(1000, FOREIGN))


def test_files_are_found_by_pattern_unless_they_are_cut_short(tmp_path: Path) -> None:
    for step, content in ((5, ZIP), (10, ZIP), (15, ZIP[:-1]), (20, b"")):
        (tmp_path / f"model-{step}.pt").write_bytes(content)
    assert steps(saved(Whereabouts(None, "model-*.pt", str(tmp_path)))) == [5, 10]
    assert steps(saved(Whereabouts(None, str(tmp_path / "model-*.pt"), "/"))) == [5, 10]
    (tmp_path / "model-12.txt").write_text("of a kind that does not tell")
    assert steps(saved(Whereabouts(None, "model-*", str(tmp_path)))) == [5, 10, 12]


def test_names_without_a_number_are_ordered_by_age_and_tell_no_step(tmp_path: Path) -> None:
    for age, name in ((1, "new.pt"), (2, "old.pt")):
        (tmp_path / name).write_bytes(ZIP)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    found = saved(Whereabouts(None, "*.pt", str(tmp_path)))
    assert found is not None and as_checkpoints(found) is None
    assert chosen(found, None, lambda _: True) == Saved(None, str(tmp_path / "new.pt"))
    assert chosen(found, Checkpoint(5, FOREIGN), lambda _: True) is None


def test_where_nothing_is_said_nothing_is_known_and_where_nothing_is_left_nothing_is_there(tmp_path: Path) -> None:
    assert saved(Whereabouts(None, None, str(tmp_path))) is None and as_checkpoints(None) is None
    assert saved(Whereabouts("out", None, str(tmp_path))) == [] and as_checkpoints([]) == ()
    assert saved(Whereabouts(None, "out/*", str(tmp_path))) == []


def test_a_rollback_takes_the_newest_at_or_before_its_step_that_counts() -> None:
    found = [Saved(step, f"c{step}") for step in (10, 20, 30)]
    assert chosen(found, None, lambda _: True) == found[2]
    assert chosen(found, Checkpoint(29, FOREIGN), lambda _: True) == found[1]
    assert chosen(found, None, lambda each: each.step < 20) == found[0]
    assert chosen(found, Checkpoint(9, FOREIGN), lambda _: True) is None


def test_a_folder_that_is_none_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StoreError, match="cannot be listed"):
        saved(Whereabouts("out", None, str(tmp_path)))


def test_each_new_checkpoint_is_announced_once_and_again_when_it_has_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listings: list[tuple[Checkpoint, ...] | StoreError | None] = [
        None,
        (Checkpoint(10, FOREIGN),),
        StoreError("gone"),
        StoreError("gone"),
        (Checkpoint(10, FOREIGN), Checkpoint(20, FOREIGN)),
        (Checkpoint(20, FOREIGN),),
        (Checkpoint(10, FOREIGN), Checkpoint(20, FOREIGN)),
    ]

    def listed() -> tuple[Checkpoint, ...] | None:
        found = listings.pop(0)
        if isinstance(found, StoreError):
            raise found
        return found

    told: list[events.Event] = []
    watch = ForeignWatch(listed, told.append, lambda: 3)
    for _ in range(len(listings)):
        watch.look()
    committed = [each for each in told if isinstance(each, events.CheckpointCommitted)]
    assert [each.checkpoint.step for each in committed] == [10, 20, 10] and {each.attempt for each in committed} == {3}
    assert caplog.text.count("cannot be listed") == 1
