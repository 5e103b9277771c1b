# SPDX-License-Identifier: Apache-2.0
"""Slabs pass between processes, and vanish with the last of their users."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint.api import CheckpointError
from checkpoint.slab import PAGE_BYTES, Slab, Word, memory_folder, name_of, slab_bytes, sweep

_REPOSITORY = Path(__file__).parents[2]
_HOLDER = """
import sys
from pathlib import Path
from checkpoint.slab import Slab
slab = Slab.create(Path(sys.argv[1]), 5000)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_other_end_sees_image_record_and_word(tmp_path: Path) -> None:
    mine = Slab.create(tmp_path / "a.slab", slab_bytes(5000, 20))
    theirs = Slab.attach(tmp_path / "a.slab")
    assert mine.word is Word.FREE and mine.image_length == 0
    mine.memory[PAGE_BYTES : PAGE_BYTES + 5000] = b"x" * 5000
    mine.memory[PAGE_BYTES + 5000 : PAGE_BYTES + 6000] = b"old" * 333 + b"o"
    mine.put_record(5000, b"the record")
    mine.word = Word.FULL
    assert theirs.word is Word.FULL and theirs.record == b"the record" and theirs.image_length == 5000
    with theirs.image as image:
        assert bytes(image) == b"x" * 5000 + bytes(2 * PAGE_BYTES - 5000)
    theirs.word = Word.FREE
    assert mine.word is Word.FREE
    theirs.close()
    mine.close(remove=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("capacity", [100_000, 10])
def test_a_changed_capacity_is_followed(tmp_path: Path, capacity: int) -> None:
    mine = Slab.create(tmp_path / "a.slab", 5000)
    theirs = Slab.attach(tmp_path / "a.slab")
    mine.put_record(10, b"kept")
    mine.resize(max(capacity, slab_bytes(10, 4)))
    theirs.follow()
    assert mine.capacity == theirs.capacity >= capacity and theirs.record == b"kept"
    theirs.close()
    mine.close(remove=True)


def test_memory_that_is_not_there_is_refused_and_nothing_is_left(full_disk: Path) -> None:
    with pytest.raises(OSError, match="no room for 2002944 bytes of memory") as refused:
        Slab.create(full_disk / "a.slab", 1_998_848)
    assert refused.value.errno == errno.ENOSPC
    assert list(full_disk.iterdir()) == []
    slab = Slab.create(full_disk / "a.slab", 5000)
    with pytest.raises(OSError, match="no room"):
        slab.resize(2_000_000)
    slab.word = Word.FULL
    assert slab.capacity == slab_bytes(5000, 0)
    slab.close(remove=True)


def test_an_unnamed_slab_is_attached_to_like_any_other(tmp_path: Path) -> None:
    mine = Slab.create_unnamed(tmp_path / "a.slab", 5000)
    theirs = Slab.attach(mine.path)
    mine.put_record(3, b"record")
    assert theirs.record == b"record"
    theirs.close()
    mine.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_only_slabs_of_dead_processes_are_swept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "held.slab")]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        (tmp_path / "dead.slab").write_bytes(b"x")
        (tmp_path / "other").write_bytes(b"x")
        assert sweep(tmp_path) == ["dead.slab"]
        second = Slab.attach(tmp_path / "held.slab")
        holder.kill()
        holder.wait()
        assert sweep(tmp_path) == []
        second.close()
        assert sweep(tmp_path) == ["held.slab"]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_the_folder_is_this_users_alone(tmp_path: Path) -> None:
    folder = memory_folder({"CHECKPOINT_MEMORY": str(tmp_path)})
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(CheckpointError, match="only this user can write to"):
        memory_folder({"CHECKPOINT_MEMORY": str(tmp_path)})
    assert memory_folder({}).parent == Path("/dev/shm")


def test_names_differ_by_store_launch_rank_and_slot() -> None:
    names = {
        name_of(store, token, rank, slot) for store in "ab" for token in "cd" for rank in (0, 1) for slot in (0, 1)
    }
    assert len(names) == 16


def test_a_view_that_somebody_still_holds_is_no_reason_to_fail(tmp_path: Path) -> None:
    slab = Slab.create(tmp_path / "a.slab", 5000)
    slab.put_record(10, b"record")
    with slab.image as held:
        slab.resize(20_000)
        assert slab.record == b"record" and len(held) == PAGE_BYTES
    with slab.image:
        slab.close(remove=True)
    assert list(tmp_path.iterdir()) == []
