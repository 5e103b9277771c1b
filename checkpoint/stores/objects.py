# SPDX-License-Identifier: Apache-2.0
"""Flat objects under one prefix, as object stores have them; through fsspec, so wherever that reaches.

What goes wrong is an OSError: FileNotFoundError, PermissionError, FileExistsError, or `AwayError` for what may be
right a moment later.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any, Protocol


class AwayError(OSError):
    """The store did not answer, or asked for patience; `retry_after_s` is how long it wants to be left alone."""

    def __init__(self, why: str, retry_after_s: float | None = None) -> None:
        super().__init__(errno.EAGAIN, why)
        self.retry_after_s = retry_after_s


class Objects(Protocol):
    """Objects by key; keys are relative to the prefix, with `/` between folder and name."""

    @property
    def uri(self) -> str: ...

    def folders(self) -> list[str]:
        """First parts of all keys that have a `/`."""

    def sizes(self, folder: str, start: str = "") -> dict[str, int]:
        """Bytes of each object right in a folder, by its name there, of those that begin so; however many."""

    def size(self, key: str) -> int | None:
        """Bytes of one object; None when there is none."""

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of an object, or those from `start` to before `end`."""

    def put(self, key: str, payload: bytes) -> None:
        """Put an object in place of any other."""

    def put_new(self, key: str, payload: bytes) -> None:
        """Put an object where there is none, atomically as far as the store can; else FileExistsError."""

    def put_large(self, key: str, payload: memoryview) -> None:
        """As `put`, in parallel parts."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; one that is not there is no error."""

    def drop_unfinished(self, is_dead: Callable[[str, float], bool]) -> None:
        """Drop what dead writers have begun to put in parts, and nobody sees; told dead by key and age in seconds."""


class FsspecObjects:
    """Any file system of fsspec. It cannot create an object conditionally, so `put_new` looks first and then puts."""

    def __init__(self, filesystem: Any, root: str, uri: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._uri = uri.rstrip("/")

    @property
    def uri(self) -> str:
        return self._uri

    def folders(self) -> list[str]:
        try:
            found = self._fs.ls(self._root, detail=True, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory")

    def sizes(self, folder: str, start: str = "") -> dict[str, int]:
        try:
            found = self._fs.ls(self._key(folder).rstrip("/"), detail=True, refresh=True)
        except FileNotFoundError:
            return {}
        sizes = {each["name"].rpartition("/")[2]: int(each["size"]) for each in found if each["type"] == "file"}
        return {name: size for name, size in sizes.items() if name.startswith(start)}

    def size(self, key: str) -> int | None:
        try:
            return int(self._fs.info(self._key(key), refresh=True)["size"])
        except FileNotFoundError:
            return None

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        payload: bytes = self._fs.cat_file(self._key(key), start=start or None, end=end)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        self._fs.pipe_file(self._key(key), payload)

    def put_new(self, key: str, payload: bytes) -> None:
        if self.size(key) is not None:
            raise FileExistsError(errno.EEXIST, f"{self._uri}/{key} is there already")
        self.put(key, payload)

    def put_large(self, key: str, payload: memoryview) -> None:
        self.put(key, bytes(payload))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self._fs.rm_file(self._key(key))
            except FileNotFoundError:
                continue

    def drop_unfinished(self, is_dead: Callable[[str, float], bool]) -> None:
        """Nothing is put in parts here."""

    def _key(self, key: str) -> str:
        return f"{self._root}/{key}"
