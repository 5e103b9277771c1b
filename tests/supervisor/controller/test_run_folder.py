# SPDX-License-Identifier: Apache-2.0
"""A run folder that cannot be used is refused with the thing, what is wrong with it and the next step."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from supervisor.controller.api import ControllerError
from supervisor.controller.journal import read_journal
from supervisor.controller.run_folder import RunFolder


@pytest.mark.parametrize("name", ["journal.jsonl", "steps.csv", "lock", "controller.json", "run.json"])
def test_a_folder_in_place_of_one_of_its_files_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ControllerError, match=f"{name} is a folder, but .* move it away, or name another"):
        RunFolder(tmp_path).make()


def test_a_journal_that_is_a_folder_cannot_be_read_and_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.journal.mkdir()
    with pytest.raises(ControllerError, match=r"journal\.jsonl cannot be read: Is a directory; it has to be a file"):
        list(read_journal(folder.journal))


def test_a_write_without_room_is_told_with_the_folder_and_the_next_step(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ControllerError, match=f"the disk of {tmp_path} is full: .* free space on it"), folder.telling():
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_of_the_folder_that_may_not_be_used_is_told_and_any_other_failure_stays_a_bug(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ControllerError, match="lock cannot be used: Permission denied; mend that"), folder.telling():
        raise PermissionError(errno.EACCES, "Permission denied", str(folder.lock))
    with pytest.raises(PermissionError), folder.telling():
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere")
