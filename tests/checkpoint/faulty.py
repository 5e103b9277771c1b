# SPDX-License-Identifier: Apache-2.0
"""A store that fails on order, around a real one."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO

from checkpoint.api import Sink, Store


class FaultyStore:
    """Counts the changes made to a store (each write to a sink is one) and runs `before` ahead of every one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.changes = 0
        self.before: Callable[[str, int], None] = lambda _what, _count: None

    @property
    def location(self) -> str:
        return self._store.location

    def fail_at(self, count: int) -> None:
        """From now on let the change of this number (1 is the next one) fail as a full disk does."""
        self.changes = 0

        def fail(what: str, changes: int) -> None:
            if changes == count:
                raise OSError(errno.ENOSPC, "No space left on device", what)

        self.before = fail

    def heal(self) -> None:
        """Fail no more."""
        self.before = lambda _what, _count: None

    def folders(self) -> list[str]:
        return self._store.folders()

    def files(self, folder: str) -> dict[str, int]:
        return self._store.files(folder)

    def read(self, name: str) -> bytes:
        return self._store.read(name)

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        return self._store.open(name)

    def write(self, name: str, payload: bytes) -> None:
        self._change(f"write {name}")
        self._store.write(name, payload)

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        self._change(f"create {name}")
        with self._store.create(name) as sink:
            yield _FaultySink(sink, self._change, name)
            self._change(f"finish {name}")

    def put_buffer(self, name: str, payload: memoryview, length: int) -> None:
        self._change(f"put {name}")
        self._store.put_buffer(name, payload, length)
        self._change(f"finish {name}")

    def make_folder(self, folder: str) -> None:
        self._change(f"make {folder}")
        self._store.make_folder(folder)

    def rename(self, old: str, new: str) -> None:
        self._change(f"rename {old}")
        self._store.rename(old, new)

    def remove(self, name: str) -> None:
        self._change(f"remove {name}")
        self._store.remove(name)

    def _change(self, what: str) -> None:
        self.changes += 1
        self.before(what, self.changes)


class _FaultySink:
    def __init__(self, sink: Sink, change: Callable[[str], None], name: str) -> None:
        self._sink = sink
        self._change = change
        self._name = name

    def write(self, payload: bytes | memoryview) -> int:
        self._change(f"write to {self._name}")
        return self._sink.write(payload)
