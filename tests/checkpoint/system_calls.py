# SPDX-License-Identifier: Apache-2.0
"""Numbers every system call that changes or lists a folder's files, in this process, and lets one of them fail."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_CALLS = ("open", "pwrite", "ftruncate", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir", "scandir")


class SystemCalls:
    """The calls on what lies under one folder. As a crash, a failure is the last call that has any effect."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._lock = threading.Lock()
        self._fail_at = 0
        self._is_crash = False
        self._is_dead = False
        self.seen: list[str] = []

    def arm(self, fail_at: int, *, is_crash: bool = False) -> None:
        """Number calls anew and fail the one of this number; 0 fails none."""
        with self._lock:
            self._fail_at, self._is_crash, self._is_dead = fail_at, is_crash, False
            self.seen.clear()

    def before(self, call: str, target: object) -> None:
        """Count a call.

        Raises:
            OSError: it is the one to fail, or comes after a crash.
        """
        name = self._name(target)
        if name is None:
            return
        with self._lock:
            if self._is_dead:
                raise OSError(errno.EIO, "this process is dead", name)
            self.seen.append(f"{call} {name}")
            if len(self.seen) == self._fail_at:
                self._is_dead = self._is_crash
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def _name(self, target: object) -> str | None:
        """A path, or an open file's path, below the folder; None for what lies elsewhere."""
        if isinstance(target, int):
            try:
                path = os.readlink(f"/proc/self/fd/{target}")  # noqa: PTH115 - it may be no path at all
            except OSError:
                return None
        else:
            path = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
        return os.path.relpath(path, self._folder) if path.startswith(self._folder) else None


@contextmanager
def watched(folder: Path) -> Iterator[SystemCalls]:
    """Have the calls of this process on the folder numbered."""
    calls = SystemCalls(folder)

    def around(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(target: object = ".", *rest: Any, **named: Any) -> Any:
            calls.before(call, named.get("dir_fd") if named.get("dir_fd") is not None else target)
            return real(target, *rest, **named)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for call in _CALLS:
            patch.setattr(os, call, around(call, getattr(os, call)))
        patch.setattr(io, "open", around("open", io.open))
        yield calls
