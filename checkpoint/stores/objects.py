# SPDX-License-Identifier: Apache-2.0
"""Flat objects under one prefix, as object stores have them.

What goes wrong is an OSError: FileNotFoundError, PermissionError, FileExistsError, or `AwayError` for what may be
right a moment later.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Protocol


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
