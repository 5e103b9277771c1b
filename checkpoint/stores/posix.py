# SPDX-License-Identifier: Apache-2.0
"""A store on a POSIX file system, local or shared.

A file's bytes are durable after its own fsync, its name only after the fsync of its folder: every write does both.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from checkpoint.api import Sink
from checkpoint.stores import direct

_REMNANT_S = 3600.0
"""A file that is put in place by a rename is never being written for so long."""


class PosixStore:
    """Folders of files under one root, which is made when the first folder is."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def location(self) -> str:
        return str(self._root)

    def folders(self) -> list[str]:
        try:
            with os.scandir(self._root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def files(self, folder: str) -> dict[str, int]:
        try:
            with os.scandir(self._root / folder) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def open(self, name: str) -> IO[bytes]:
        return (self._root / name).open("rb")

    def write(self, name: str, payload: bytes) -> None:
        path = self._root / name
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as stream:
                stream.write(payload)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
        if path.parent == self._root:
            self._drop_remnants(path)

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        path = self._root / name
        with path.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        _sync_folder(path.parent)

    def put_buffer(self, name: str, payload: memoryview, length: int) -> None:
        path = self._root / name
        direct.write_file(path, payload, length)
        _sync_folder(path.parent)

    def make_folder(self, folder: str) -> None:
        path = self._root / folder
        if path.is_dir():
            return
        path.mkdir(parents=True, exist_ok=True)
        _sync_folder(path.parent)

    def rename(self, old: str, new: str) -> None:
        target = self._root / new
        if target.exists():
            raise FileExistsError(errno.EEXIST, "there is a folder of that name already", str(target))
        (self._root / old).rename(target)
        _sync_folder(self._root)

    def remove(self, name: str) -> None:
        path = self._root / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            return
        _sync_folder(path.parent)

    def _drop_remnants(self, written: Path) -> None:
        """Remove what killed writers have left in the root; in the folders of checkpoints it goes with the folder.

        By the file server's clock, as a file that was just written has it.
        """
        now = written.stat().st_mtime
        for path in self._root.glob("*.partial"):
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime >= _REMNANT_S:
                    path.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
