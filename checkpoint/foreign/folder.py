# SPDX-License-Identifier: Apache-2.0
"""A folder of a store, seen with what lies below it.

Our own checkpoints need folders of files and no more, so that is all that the port of a store tells; other programs
nest folders. A folder below is therefore reached through a store of its own, opened one level down.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import IO

from checkpoint.api import Store


class Folder:
    """Read-only; listings are read once."""

    def __init__(self, store: Store, name: str, open_store: Callable[[str], Store]) -> None:
        self._store = store
        self._open_store = open_store
        self.name = name

    @property
    def uri(self) -> str:
        return f"{self._store.location}/{self.name}" if self.name else self._store.location

    @cached_property
    def files(self) -> dict[str, int]:
        """Sizes in bytes by file name."""
        return self._store.files(self.name)

    @cached_property
    def folders(self) -> dict[str, Folder]:
        """The folders in this one by name."""
        inner = self._open_store(self.uri)
        return {name: Folder(inner, name, self._open_store) for name in inner.folders()}

    def read(self, file: str) -> bytes:
        return self._store.read(self._path(file))

    def open(self, file: str) -> AbstractContextManager[IO[bytes]]:
        return self._store.open(self._path(file))

    def all_files(self) -> dict[str, int]:
        """Sizes of the files in this folder and below, by their path in it."""
        found = dict(self.files)
        for name, folder in self.folders.items():
            found.update({f"{name}/{file}": size for file, size in folder.all_files().items()})
        return found

    def _path(self, file: str) -> str:
        return f"{self.name}/{file}" if self.name else file
