# SPDX-License-Identifier: Apache-2.0
"""When the run folder's disk counts as full, and for how long that explains a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.controller import disk
from supervisor.controller.disk import Disk


class Free:
    """Bytes that are free until a test says otherwise."""

    def __init__(self, count: int | None) -> None:
        self.count = count

    def __call__(self, folder: Path) -> int | None:
        return self.count


def test_a_disk_without_room_for_a_few_lines_is_full_until_there_is_clearly_more(tmp_path: Path) -> None:
    free = Free(disk.FULL_BELOW_BYTES)
    looked = Disk(tmp_path, free)
    assert not looked.look(1.0)
    free.count = disk.FULL_BELOW_BYTES - 1
    assert looked.look(2.0) and looked.is_full
    free.count = disk.ROOM_ABOVE_BYTES - 1
    assert looked.look(3.0)
    free.count = disk.ROOM_ABOVE_BYTES
    assert not looked.look(4.0) and not looked.is_full


def test_a_file_system_that_does_not_tell_its_room_is_not_full(tmp_path: Path) -> None:
    assert not Disk(tmp_path, Free(None)).look(1.0)
    assert disk.free_bytes(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("failed_at", "explains"), [(100.0, True), (129.0, True), (131.0, False), (50.0, True)])
def test_a_full_disk_explains_a_failure_shortly_after_it_and_any_before_it(
    tmp_path: Path, failed_at: float, explains: bool
) -> None:
    looked = Disk(tmp_path, Free(0))
    assert not looked.was_full(failed_at)
    looked.look(100.0)
    assert looked.was_full(failed_at) is explains


def test_a_write_that_a_quota_refuses_is_remembered_although_the_disk_has_room(tmp_path: Path) -> None:
    looked = Disk(tmp_path, Free(2**30))
    looked.note_refused_write(100.0)
    assert looked.was_full(100.0) and not looked.look(101.0)


def test_the_room_of_a_real_disk_is_known_to_the_byte_when_it_is_full(full_disk: Path) -> None:
    assert (disk.free_bytes(full_disk) or 0) > disk.ROOM_ABOVE_BYTES
    with pytest.raises(OSError, match="No space left"):
        (full_disk / "ballast").write_bytes(bytes(2**21))
    assert Disk(full_disk).look(1.0)
