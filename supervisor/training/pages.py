# SPDX-License-Identifier: Apache-2.0
"""Files of fixed size that two processes share by mapping them.

Words are 8 bytes, aligned, stored and loaded whole by the processor, so each is always old or new, never half. Space is
allocated before the file is mapped: a store into a hole of a full disk would kill the process with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path


class Page:
    """A mapped file and its bytes as 8-byte unsigned words."""

    __slots__ = ("_inode", "_path", "bytes", "words")

    def __init__(self, path: Path, *, is_writable: bool) -> None:
        """Map the existing file `path`.

        Raises:
            OSError: it does not exist, is not ours to open, or cannot be mapped.
            ValueError: it is empty.
        """
        with path.open("r+b" if is_writable else "rb") as file:
            status = os.fstat(file.fileno())
            access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
            self.bytes = mmap.mmap(file.fileno(), 0, access=access)
        self.words = memoryview(self.bytes)[: len(self.bytes) // 8 * 8].cast("Q")
        self._path = path
        self._inode = (status.st_dev, status.st_ino)

    def is_current(self) -> bool:
        """Tell whether `path` still names this file; a restarted process puts a new one in its place."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        return self._inode == (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Unmap; no word may be touched afterwards."""
        self.words.release()
        self.bytes.close()


def create(path: Path, size: int, head: bytes) -> Page:
    """Put a new file of `size` bytes at `path`, beginning with `head`, else zero, and map it for writing.

    It appears under its name only when it is whole, and replaces an older one.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.pwrite(descriptor, head, 0)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return Page(path, is_writable=True)
