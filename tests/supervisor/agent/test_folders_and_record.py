# SPDX-License-Identifier: Apache-2.0
"""The agent's folders are its own, and its record says what runs whoever reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.agent import folders, record
from supervisor.agent.api import AttemptEnded, LaunchSpec, RankExit
from supervisor.agent.folders import AgentFolders, FolderError
from supervisor.agent.processes import ProcessId
from supervisor.agent.record import AttemptRecord, DamagedRecordError, KnownRank, RecordError

LONG = "a-very-long-name-" * 8
WRITTEN = AttemptRecord(
    attempt=3,
    spec=LaunchSpec(("torchrun", "train.py"), "/w", (("A", "b"),), "/r/attempt-3"),
    rank_folder="/dev/shm/x/attempt-3",
    exit_file="/r/exits/attempt-3",
    began_at=5.0,
    wrapper=ProcessId(10, 77),
    launcher=ProcessId(11, 78),
    ranks=(KnownRank(0, 0, ProcessId(12, 79)),),
    exits=(RankExit(0, 0, 12, -9, 6.0),),
)


def test_the_rank_folder_is_private_and_empty(tmp_path: Path) -> None:
    where = AgentFolders(tmp_path / "run", "gpt", "node-0")
    older = folders.make_rank_folder(tmp_path, where, 1)
    folder = folders.make_rank_folder(tmp_path, where, 2)
    assert not older.exists()
    (folder / "control").touch()
    assert folders.make_rank_folder(tmp_path, where, 2) == folder and list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o700
    folders.remove_rank_folder(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    where = AgentFolders(tmp_path / "run", "gpt", "node-0")
    parent = folders.make_rank_folder(tmp_path, where, 1).parent
    parent.chmod(0o755)
    with pytest.raises(FolderError, match="must be ours alone"):
        folders.make_rank_folder(tmp_path, where, 2)


def test_a_socket_of_the_longest_names_still_fits_its_path(tmp_path: Path) -> None:
    where = AgentFolders(tmp_path / LONG, LONG, LONG)
    path = folders.node_folder(Path("/dev/shm"), where) / "attempt-9999" / "rank-9999.sock"
    assert len(str(path)) <= 107


def test_runs_of_one_name_in_two_folders_are_kept_apart(tmp_path: Path) -> None:
    one, two = (folders.node_folder(tmp_path, AgentFolders(tmp_path / name, "gpt", "n")) for name in ("a", "b"))
    assert one != two


def test_a_run_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "agents").touch()
    with pytest.raises(FolderError, match=r"cannot make .*/agents/n0"):
        AgentFolders(tmp_path, "gpt", "n0").make()


@pytest.mark.parametrize(
    "written",
    [
        WRITTEN,
        replace(WRITTEN, wrapper=None, launcher=None),
        replace(WRITTEN, refused="no such program"),
        replace(WRITTEN, ended=AttemptEnded(3, 9.0, 1, WRITTEN.exits, by_us=True), end_acknowledged=True),
    ],
)
def test_a_record_is_read_as_it_was_written(tmp_path: Path, written: AttemptRecord) -> None:
    record.write(tmp_path / "attempt.json", written)
    assert record.read(tmp_path / "attempt.json") == written
    assert written.is_over is (bool(written.refused) or written.ended is not None)


def test_no_record_means_no_attempt_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    assert record.read(path) is None
    path.touch()
    assert record.read(path) is None
    path.write_text('{"attempt": 3')
    with pytest.raises(DamagedRecordError, match=r"attempt\.json is damaged"):
        record.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedRecordError, match="is damaged"):
        record.read(path)
    record.write(path, replace(WRITTEN, version=2))
    with pytest.raises(RecordError, match="is of version 2, this agent knows 1"):
        record.read(path)
