# SPDX-License-Identifier: Apache-2.0
"""A store that numbers every operation, listings and reads too, and lets one of them go wrong: to sweep over all.

As an error the operation alone fails. As a crash it is the last that the process does: all later ones fail too, so that
the store stays as a dead writer leaves it.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import IO, TypeVar

from checkpoint.api import Sink, Store

Result = TypeVar("Result")
MESSAGE = "the disk is on fire"


class Extent(str, Enum):
    """How much of a change is done before it goes wrong; a listing or a read is done or not."""

    NOTHING = "nothing"
    HALF = "half"
    ALL = "all"


_CHANGES = ("write", "create", "put", "make", "rename", "remove")


def worth_trying(names: list[str], extent: Extent) -> list[int]:
    """The numbers of those operations whose failure to this extent differs from their not being done at all."""
    return [number for number, name in enumerate(names, 1) if extent is Extent.NOTHING or name.split()[0] in _CHANGES]


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: the first operation of this name, or of this number (1 is the next one)."""

    extent: Extent
    is_crash: bool
    name: str = ""
    number: int = 0


class SweptStore:
    """Passes everything on to a real store until the fault. Several threads may use it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._is_dead = False
        self.seen: list[str] = []

    def arm(self, fault: Fault | None) -> None:
        """Number operations anew; from now on let this go wrong, or nothing."""
        with self._lock:
            self._fault, self._is_dead = fault, False
            self.seen.clear()

    @property
    def has_struck(self) -> bool:
        """Whether the fault has happened."""
        return self._fault is None

    @property
    def location(self) -> str:
        return self._store.location

    def folders(self) -> list[str]:
        return self._do("list", self._store.folders)

    def files(self, folder: str) -> dict[str, int]:
        return self._do(f"list {folder}", lambda: self._store.files(folder))

    def read(self, name: str) -> bytes:
        return self._do(f"read {name}", lambda: self._store.read(name))

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        return self._do(f"open {name}", lambda: self._store.open(name))

    def write(self, name: str, payload: bytes) -> None:
        self._do(
            f"write {name}",
            lambda: self._store.write(name, payload),
            lambda: self._store.write(f"{name}.1.partial", payload[: len(payload) // 2]),
        )

    def create(self, name: str) -> AbstractContextManager[Sink]:
        return self._do(f"create {name}", lambda: self._store.create(name))

    def put_buffer(self, name: str, payload: memoryview, length: int) -> None:
        self._do(
            f"put {name}",
            lambda: self._store.put_buffer(name, payload, length),
            lambda: self._store.put_buffer(name, payload, length // 2),
        )

    def make_folder(self, folder: str) -> None:
        self._do(f"make {folder}", lambda: self._store.make_folder(folder))

    def rename(self, old: str, new: str) -> None:
        self._do(f"rename {old}", lambda: self._store.rename(old, new))

    def remove(self, name: str) -> None:
        self._do(f"remove {name}", lambda: self._store.remove(name), lambda: self._remove_a_file_of(name))

    def _remove_a_file_of(self, folder: str) -> None:
        for name in sorted(self._store.files(folder))[:1]:
            self._store.remove(f"{folder}/{name}")

    def _do(self, name: str, act: Callable[[], Result], half: Callable[[], object] = lambda: None) -> Result:
        with self._lock:
            if self._is_dead:
                raise OSError(errno.EIO, "this process is dead", name)
            self.seen.append(name)
            fault = self._fault
            if fault is None or (fault.name != name and fault.number != len(self.seen)):
                fault = None
            else:
                self._fault, self._is_dead = None, fault.is_crash
        if fault is None:
            return act()
        if fault.extent is Extent.HALF:
            half()
        elif fault.extent is Extent.ALL:
            act()
        raise OSError(errno.EIO, MESSAGE, name)
