# SPDX-License-Identifier: Apache-2.0
"""Large buffers on a POSIX file system, with direct I/O and without."""

from __future__ import annotations

import errno
import mmap
import os
import time
from pathlib import Path

import pytest

from checkpoint.stores import PosixStore, direct

_MIB = 1 << 20


def pages(length: int) -> memoryview:
    """Page-aligned memory of whole pages whose bytes tell their place."""
    memory = mmap.mmap(-1, -(-length // 4096) * 4096)
    memory.write(b"".join(index.to_bytes(8, "little") for index in range(len(memory) // 8)))
    return memoryview(memory)


@pytest.mark.parametrize("length", [0, 1, 4096, _MIB - 1, _MIB, 9 * _MIB + 1, 9 * _MIB + 4095, 12 * _MIB])
@pytest.mark.parametrize("where", ["disk", "/dev/shm"])
def test_a_buffer_becomes_a_file_of_exactly_its_length(tmp_path: Path, length: int, where: str) -> None:
    payload = pages(max(length, 1))
    store = PosixStore(tmp_path if where == "disk" else Path(where) / f"checkpoint-test-{os.getpid()}")
    store.make_folder("folder")
    try:
        store.put_buffer("folder/file", payload, length)
        assert store.read("folder/file") == bytes(payload[:length])
        store.put_buffer("folder/file", payload, min(length, 5))
        assert store.read("folder/file") == bytes(payload[: min(length, 5)])
    finally:
        store.remove("")


def test_a_file_system_without_direct_writes_takes_it_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    direct.write_file(tmp_path / "file", payload := pages(2 * _MIB + 7), 2 * _MIB + 7)
    assert (tmp_path / "file").read_bytes() == bytes(payload[: 2 * _MIB + 7])


def test_a_full_disk_is_an_error(full_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        direct.write_file(full_disk / "file", pages(3 * _MIB), 3 * _MIB)
    with pytest.raises(OSError, match="No space left on device"):
        PosixStore(full_disk).put_buffer("file", pages(2 * _MIB), 2 * _MIB)


def test_what_killed_writers_left_in_the_root_is_removed_when_nobody_can_be_writing_it(tmp_path: Path) -> None:
    for name, age_s in (("FENCE.json.12.partial", 4000), ("FENCE.json.13.partial", 60)):
        (tmp_path / name).write_bytes(b"{")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    PosixStore(tmp_path).write("SCHEDULE.json", b"{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["FENCE.json.13.partial", "SCHEDULE.json"]
