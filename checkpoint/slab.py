# SPDX-License-Identifier: Apache-2.0
"""A slab: a shared-memory file that holds one snapshot of one rank, for another process to write to disk.

    | header, one page | image of the rank's file, page aligned | record of the save |

The word in the header passes the slab to and fro: FREE and FILLING are the rank's, FULL is the writer's, which makes it
FREE again. Whoever uses a slab holds a shared lock on it, which the kernel drops with its holder: a slab that can be
locked alone is nobody's, whatever became of process numbers, and is removed by the next start.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from checkpoint.api import CheckpointError
from checkpoint.manifest import short_digest

PAGE_BYTES = 4096
_SUFFIX = ".slab"
_WORD, _IMAGE_LENGTH, _RECORD_START, _RECORD_LENGTH = range(4)


class Word(IntEnum):
    """Whose the slab is, and why."""

    FREE = 0
    FILLING = 1
    FULL = 2


def memory_path(environment: Mapping[str, str]) -> Path:
    """Where this user's slabs lie: in `CHECKPOINT_MEMORY`, or else in /dev/shm."""
    return Path(environment.get("CHECKPOINT_MEMORY") or "/dev/shm") / f"checkpoint-{os.getuid()}"  # noqa: S108


def memory_folder(environment: Mapping[str, str]) -> Path:
    """The folder at `memory_path`, made on demand.

    Raises:
        CheckpointError: it is not this user's own.
        OSError: it cannot be made.
    """
    folder = memory_path(environment)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise CheckpointError(
            f"{folder} is not a folder that only this user can write to: remove it, or set CHECKPOINT_MEMORY to "
            "another folder in memory"
        )
    return folder


def name_of(location: str, token: str, rank: int, slot: int) -> str:
    """File name of a slab; `location` is the store's, `token` the launch's."""
    return f"{short_digest(location)}-{short_digest(token)}-{rank}-{slot}{_SUFFIX}"


def sweep(folder: Path) -> list[str]:
    """Remove the slabs that dead processes left; returns their names."""
    swept = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            swept.append(path.name)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
    return swept


class Slab:
    """One mapped slab. A rank makes it with `create`, the writer attaches to it with `attach`."""

    def __init__(self, descriptor: int, path: Path, *, populate: bool = True) -> None:
        self._descriptor = descriptor
        self._flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
        self._inode = os.fstat(descriptor).st_ino
        self.path = path
        self._map()

    @classmethod
    def create(cls, path: Path, capacity: int) -> Slab:
        """Make a slab for images and records of `capacity` bytes together, in memory that is already there.

        Raises:
            OSError: there is no room for it; the file is gone again then.
        """
        while True:
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if is_at(descriptor, path):
                break
            # Another process swept it before the lock was ours.
            os.close(descriptor)
        try:
            _allocate(descriptor, capacity)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return cls(descriptor, path)

    @classmethod
    def create_unnamed(cls, path: Path, capacity: int) -> Slab:
        """A slab outside every folder, for where the one for slabs has no room; it ends with its last user.

        Raises:
            OSError: there is no memory for it.
        """
        descriptor = os.memfd_create(path.name, os.MFD_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            _allocate(descriptor, capacity)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, Path(f"/proc/{os.getpid()}/fd/{descriptor}"))

    @classmethod
    def attach(cls, path: Path, *, populate: bool = True) -> Slab:
        """Map a slab that a rank made; without `populate` pages are mapped as they are read, which is soon if once.

        Raises:
            OSError: it is gone.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return cls(descriptor, path, populate=populate)

    @property
    def capacity(self) -> int:
        """Bytes for image and record together."""
        return len(self.memory) - PAGE_BYTES

    @property
    def word(self) -> Word:
        return Word(self._words[_WORD])

    @word.setter
    def word(self, word: Word) -> None:
        self._words[_WORD] = word

    @property
    def image(self) -> memoryview:
        """The image, padded to whole pages; `image_length` says how much of it counts."""
        return memoryview(self.memory)[PAGE_BYTES : PAGE_BYTES + _pages(self.image_length)]

    @property
    def image_length(self) -> int:
        return int(self._words[_IMAGE_LENGTH])

    @property
    def record(self) -> bytes:
        """What the rank says about the save; see `record.SaveRecord`."""
        start = int(self._words[_RECORD_START])
        return self.memory[start : start + int(self._words[_RECORD_LENGTH])]

    def put_record(self, image_length: int, record: bytes) -> None:
        """Set the image's length and put the record behind it; the bytes that fill the last page become zero."""
        end, start = PAGE_BYTES + image_length, PAGE_BYTES + _pages(image_length)
        self.memory[end:start] = bytes(start - end)
        self.memory[start : start + len(record)] = record
        self._words[_IMAGE_LENGTH] = image_length
        self._words[_RECORD_START] = start
        self._words[_RECORD_LENGTH] = len(record)

    def resize(self, capacity: int) -> None:
        """Change the capacity; all views of the memory must be gone.

        Raises:
            OSError: there is no room; the slab is as before.
        """
        self._unmap()
        try:
            _allocate(self._descriptor, capacity)
        finally:
            self._map()

    def follow(self) -> None:
        """Map it anew if its rank has changed the capacity."""
        if os.fstat(self._descriptor).st_size != len(self.memory):
            self._unmap()
            self._map()

    def close(self, *, remove: bool = False) -> None:
        """Unmap it, all views of it being gone; with `remove` its name goes too."""
        self._unmap()
        if remove and is_at(self._descriptor, self.path):
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _map(self) -> None:
        length = os.fstat(self._descriptor).st_size
        self.memory = mmap.mmap(self._descriptor, length, flags=self._flags)
        self._words = memoryview(self.memory)[:PAGE_BYTES].cast("Q")

    def _unmap(self) -> None:
        self._words.release()
        try:
            self.memory.close()
        except BufferError:
            # An error that came out of a pool of threads holds on to the frames, and so to the views, that it passed.
            gc.collect()
            # Who keeps such an error, as some handlers of logs do, keeps the mapping until it lets go.
            with suppress(BufferError):
                self.memory.close()


def slab_bytes(image: int, record: int) -> int:
    """The capacity that an image and a record need."""
    return _pages(image) + _pages(record)


def _allocate(descriptor: int, capacity: int) -> None:
    """Have the kernel give every page now: a page that it cannot give later would end the process (SIGBUS)."""
    size = PAGE_BYTES + _pages(capacity)
    before = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.ftruncate(descriptor, before)
        if error.errno == errno.ENOSPC:
            raise OSError(errno.ENOSPC, f"no room for {size} bytes of memory") from error
        raise
    os.ftruncate(descriptor, size)


def _pages(length: int) -> int:
    return -(-length // PAGE_BYTES) * PAGE_BYTES


def is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still names the file that a descriptor has open."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_ino, found.st_dev) == (mine.st_ino, mine.st_dev)
