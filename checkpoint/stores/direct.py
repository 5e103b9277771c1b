# SPDX-License-Identifier: Apache-2.0
"""Writes a large buffer to a file past the page cache, so that neither its copy nor its later flush slows training.

Direct I/O (O_DIRECT) takes memory, offsets and lengths in whole blocks only. So whole pages are written, and the file
is then cut to its length. Where the file system knows no direct I/O, the same blocks go through the page cache.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_BLOCK_BYTES = 4 << 20
_THREADS = 2
_PAGE_BYTES = 4096
_WORTHWHILE_BYTES = 1 << 20
"""Below it, opening a file for direct I/O and cutting it costs more than the cache does."""


def write_file(path: Path, payload: memoryview, length: int) -> None:
    """Write the first `length` bytes of a page-aligned buffer of whole pages; durable when it returns, the name not.

    Raises:
        OSError: the file system could not take it.
    """
    if length >= _WORTHWHILE_BYTES and _write_direct(path, payload, length):
        return
    _write(path, payload[:length], length, 0)


def _write_direct(path: Path, payload: memoryview, length: int) -> bool:
    """False where the file system does not know direct I/O."""
    pages = -(-length // _PAGE_BYTES) * _PAGE_BYTES
    try:
        _write(path, payload[:pages], length, os.O_DIRECT)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _write(path: Path, payload: memoryview, length: int, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | flags, 0o644)
    try:
        # Each worker takes the next block from one iterator; `next` on a range is atomic in CPython.
        blocks = iter(range(0, len(payload), _BLOCK_BYTES))
        with ThreadPoolExecutor(_THREADS, "checkpoint-disk") as pool:
            for written in [pool.submit(_write_blocks, descriptor, payload, blocks) for _ in range(_THREADS)]:
                written.result()
        if len(payload) != length:
            os.ftruncate(descriptor, length)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_blocks(descriptor: int, payload: memoryview, blocks: Iterator[int]) -> None:
    for start in blocks:
        end = min(start + _BLOCK_BYTES, len(payload))
        at = start
        while at < end:
            reached = at + os.pwrite(descriptor, payload[at:end], at)
            # A nearly full disk takes a part; direct I/O goes on at whole pages only, and then says that it is full.
            reached = reached if reached == end else reached // _PAGE_BYTES * _PAGE_BYTES
            if reached == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            at = reached
