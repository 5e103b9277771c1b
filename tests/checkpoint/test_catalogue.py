# SPDX-License-Identifier: Apache-2.0
"""The catalogue and its command, on folders made without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import xxhash

from checkpoint.__main__ import main
from checkpoint.api import (
    CheckpointError,
    CheckpointRef,
    CommittedCheckpoint,
    EntryState,
    Fence,
    StoreError,
    open_catalogue,
)
from checkpoint.lineage import advanced_fence, folder_of
from checkpoint.listing import readable_size
from checkpoint.manifest import FileRecord, Manifest, encode_manifest


def commit(
    root: Path, step: int, attempt: int = 1, *, position: int | None = None, healthy: bool | None = None
) -> Path:
    """Make a committed checkpoint of one file."""
    folder = root / folder_of(CheckpointRef(step, attempt))
    folder.mkdir(parents=True)
    payload = f"state {step}".encode()
    (folder / "file").write_bytes(payload)
    record = FileRecord(len(payload), xxhash.xxh3_128_hexdigest(payload))
    manifest = Manifest("run", attempt, step, 1, position, (), healthy, 1.0, {"file": record})
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    return folder


def step_of(found: CommittedCheckpoint | None) -> int | None:
    return found.step if found else None


def test_an_empty_or_missing_folder_has_no_checkpoints(tmp_path: Path) -> None:
    catalogue = open_catalogue(str(tmp_path / "missing"))
    assert catalogue.committed() == [] and catalogue.all_entries() == [] and catalogue.best() is None
    assert catalogue.read_fence() is None and catalogue.newest_attempt() == 0 and catalogue.cut_off() == []


def test_each_folder_is_told_for_what_it_is(tmp_path: Path) -> None:
    for step, attempt in ((1, 1), (2, 1), (2, 2)):
        commit(tmp_path, step, attempt)
    commit(tmp_path, 3, 2).rename(tmp_path / "damaged-step-000000000003-a2")
    (tmp_path / "step-000000000004-a2.tmp").mkdir()
    (tmp_path / "unrelated").mkdir()
    (tmp_path / folder_of(CheckpointRef(1, 1)) / "file").write_bytes(b"short")
    catalogue = open_catalogue(f"file://{tmp_path}")
    catalogue.write_fence(Fence(2, 1, 1, (CheckpointRef(1, 1),)))
    found = {entry.folder: (entry.state, entry.is_whole) for entry in catalogue.all_entries()}
    assert found == {
        "step-000000000001-a1": (EntryState.VISIBLE, False),
        "step-000000000002-a1": (EntryState.INVISIBLE, True),
        "step-000000000002-a2": (EntryState.VISIBLE, True),
        "damaged-step-000000000003-a2": (EntryState.SET_ASIDE, True),
        "step-000000000004-a2.tmp": (EntryState.INCOMPLETE, False),
    }
    assert [each.ref for each in catalogue.committed()] == [CheckpointRef(1, 1), CheckpointRef(2, 2)]
    assert catalogue.cut_off() == [CheckpointRef(2, 1)]


def test_a_fence_that_would_hide_everything_for_the_sake_of_a_pruned_checkpoint_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 800)
    commit(tmp_path, 900)
    catalogue = open_catalogue(str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"no checkpoint of step 200 or older .* left are those of steps 800, 900"
    ):
        catalogue.write_fence(Fence(2, 200, 1))
    assert [each.step for each in catalogue.committed()] == [800, 900]


def test_a_fence_may_name_a_checkpoint_that_is_gone_where_an_older_one_is_left(tmp_path: Path) -> None:
    commit(tmp_path, 800)
    catalogue = open_catalogue(str(tmp_path))
    catalogue.write_fence(Fence(2, 900, 1, (CheckpointRef(800, 1),)))
    assert [each.step for each in catalogue.committed()] == [800]


def test_the_best_is_the_newest_that_is_old_enough_and_healthy(tmp_path: Path) -> None:
    rows: list[tuple[int, int | None, bool | None]] = [(1, None, None), (2, 20, True), (3, 30, None), (4, 40, False)]
    for step, position, healthy in rows:
        commit(tmp_path, step, position=position, healthy=healthy)
    catalogue = open_catalogue(str(tmp_path))
    assert step_of(catalogue.best()) == 3
    assert step_of(catalogue.best(healthy=False)) == 4
    assert step_of(catalogue.best(before_step=3)) == 2
    assert step_of(catalogue.best(before_position=30)) == 3
    assert step_of(catalogue.best(before_position=29)) == 2
    assert step_of(catalogue.best(before_position=19)) is None
    assert step_of(catalogue.best(before_step=1)) is None


def test_health_that_is_found_later_counts_more_than_the_manifest(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        commit(tmp_path, step, healthy=True)
    catalogue = open_catalogue(str(tmp_path))
    with pytest.raises(CheckpointError, match="no fence"):
        catalogue.mark_unhealthy([CheckpointRef(3, 1)])
    catalogue.write_fence(Fence(1))
    catalogue.mark_unhealthy([CheckpointRef(3, 1)])
    catalogue.mark_unhealthy([CheckpointRef(2, 1), CheckpointRef(3, 1)])
    assert step_of(catalogue.best()) == 1 and step_of(catalogue.best(healthy=False)) == 3
    assert [entry.committed and entry.committed.healthy for entry in catalogue.all_entries()] == [True, False, False]
    fence = catalogue.read_fence()
    assert fence == Fence(1, unhealthy=(CheckpointRef(2, 1), CheckpointRef(3, 1)))
    seen = [each.ref for each in catalogue.committed()]
    later = advanced_fence(2, resume=CheckpointRef(2, 1), visible=seen, controller="", unhealthy=fence.unhealthy)
    assert later.unhealthy == (CheckpointRef(2, 1),)


def test_the_newest_attempt_is_known_to_the_fence_or_to_any_folder(tmp_path: Path) -> None:
    catalogue = open_catalogue(str(tmp_path))
    catalogue.write_fence(Fence(2))
    assert catalogue.newest_attempt() == 2
    (tmp_path / "step-000000000004-a5.tmp").mkdir()
    assert catalogue.newest_attempt() == 5


def test_a_checkpoint_with_a_damaged_manifest_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    commit(tmp_path, 1)
    (commit(tmp_path, 2) / "manifest.json").write_bytes(b"{")
    assert [each.step for each in open_catalogue(str(tmp_path)).committed()] == [1]
    assert "damaged manifest step=2" in caplog.text


def test_setting_aside_twice_keeps_both(tmp_path: Path) -> None:
    catalogue = open_catalogue(str(tmp_path))
    names = []
    for _ in range(2):
        commit(tmp_path, 1)
        names.append(catalogue.set_aside(CheckpointRef(1, 1), "a test"))
    assert names == ["damaged-step-000000000001-a1", "damaged-step-000000000001-a1-1"]
    assert {path.name for path in tmp_path.iterdir()} == set(names)


def test_verify_names_each_damaged_file_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path, 1)
    assert main(["verify", str(tmp_path)]) == 0
    (commit(tmp_path, 2) / "file").write_bytes(b"state 3")
    (commit(tmp_path, 3) / "file").unlink()
    capsys.readouterr()
    assert main(["verify", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "step-000000000001-a1: whole" in shown and "step-000000000002-a1: damaged\n  file: its checksum" in shown
    assert "file: is missing" in shown
    assert main(["verify", str(tmp_path), "--step", "1", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"step": 1, "attempt": 1, "folder": "step-000000000001-a1", "damaged": []}
    ]


def test_ls_lists_every_folder_as_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path)]) == 0
    assert "no checkpoints in" in capsys.readouterr().out
    commit(tmp_path, 1, healthy=True)
    assert main(["ls", str(tmp_path)]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split("\t")[:3] == ["step", "attempt", "time"]
    assert row.split("\t")[0] == "1" and row.split("\t")[4:] == [
        "healthy",
        "file",
        "visible",
        "yes",
        "step-000000000001-a1",
    ]
    assert main(["ls", str(tmp_path), "--format", "json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["step"] == 1 and entry["healthy"] is True and entry["whole"] is True and entry["state"] == "visible"


def test_a_foreign_folder_is_listed_and_verified_as_far_as_it_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 20):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
        (folder / "pytorch_model.bin").write_bytes(b"old kind of file")
    (tmp_path / "checkpoint-20" / "pytorch_model.bin").unlink()
    assert main(["ls", str(tmp_path)]) == 0
    _, first, second = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert first == ["10", "-", "-", "35 B", "-", "file", "hugging face", "yes", "checkpoint-10"]
    assert (second[0], second[7]) == ("20", "no")
    assert main(["ls", str(tmp_path), "--format", "json"]) == 0
    whole, partial = json.loads(capsys.readouterr().out)
    assert whole["format"] == "hugging face" and whole["state"] == "foreign" and whole["whole"]
    assert partial["faults"] == [{"file": "model.safetensors", "why": "is missing"}]
    assert main(["verify", str(tmp_path)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "checkpoint-10: whole, as far as its format tells",
        "checkpoint-20: damaged",
        "  model.safetensors: is missing",
    ]
    assert main(["verify", str(tmp_path), "--step", "10"]) == 0
    assert main(["prune", str(tmp_path), "--keep", "1"]) == 0
    assert "for that program to prune" in capsys.readouterr().out


def test_the_best_whole_one_is_older_than_those_that_are_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2, 3):
        commit(tmp_path, step)
    (tmp_path / folder_of(CheckpointRef(3, 1)) / "file").write_bytes(b"state X")
    (tmp_path / folder_of(CheckpointRef(2, 1)) / "manifest.json").write_bytes(b"")
    read: list[int] = []
    catalogue = open_catalogue(str(tmp_path))
    assert step_of(catalogue.best_whole()) == 1
    assert catalogue.best_whole(before_step=1) is None
    assert "checkpoint set aside step=3" in caplog.text and "damaged manifest step=2" in caplog.text
    assert catalogue.verify(CheckpointRef(1, 1), told=read.append) == [] and read == [len(b"state 1")]


def test_a_progress_bar_is_shown_to_a_person_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, 1)
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("step-000000000001-a1: whole\n", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["verify", str(tmp_path)]) == 0
    assert "reading" in capsys.readouterr().err


def test_prune_deletes_the_old_and_the_cut_off_and_can_only_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, attempt in ((1, 1), (2, 1), (3, 1), (2, 2), (4, 2)):
        commit(tmp_path, step, attempt)
    open_catalogue(str(tmp_path)).write_fence(Fence(2, 1, 1, (CheckpointRef(1, 1),)))
    before = {path.name for path in tmp_path.iterdir()}
    assert main(["prune", str(tmp_path), "--keep", "2", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "would delete step-000000000001-a1",
        "would delete step-000000000002-a1",
        "would delete step-000000000003-a1",
    ]
    assert {path.name for path in tmp_path.iterdir()} == before
    assert main(["prune", str(tmp_path), "--keep", "2"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"FENCE.json", "step-000000000002-a2", "step-000000000004-a2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "gopher://nowhere"], "no store for the scheme 'gopher'"),
        (["ls", "/nowhere/at/all"], "/nowhere/at/all is no folder; name the one"),
        (["verify", "/tmp", "--step", "77777777"], "no committed checkpoint of step 77777777 in /tmp"),
        (["prune", "/tmp", "--keep", "0"], "at least one must stay"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_sizes_are_readable() -> None:
    assert [readable_size(n) for n in (0, 1023, 1536, 5 << 30, 3 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "3072.0 TiB",
    ]


def test_a_store_that_cannot_be_used_is_one_kind_of_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"cannot be used.*Not a directory"):
        open_catalogue(str(tmp_path / "file")).committed()
    with pytest.raises(StoreError, match="cannot be used"):
        open_catalogue(str(tmp_path / "file" / "inner")).write_fence(Fence(1))


def test_a_committed_checkpoint_names_its_own_folder(tmp_path: Path) -> None:
    folder = commit(tmp_path, 1)
    assert [each.uri for each in open_catalogue(str(tmp_path)).committed()] == [str(folder)]
