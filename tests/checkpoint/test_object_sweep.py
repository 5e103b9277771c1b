# SPDX-License-Identifier: Apache-2.0
"""Whatever request to an object store is a process' last: nothing committed is lost, and the next start clears up."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import fsspec
import pytest
import torch

from checkpoint import Checkpointer
from checkpoint.api import CheckpointError
from checkpoint.catalogue import Catalogue
from checkpoint.stores.any_fsspec import FsspecObjects
from checkpoint.stores.object_store import ObjectStore

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


def state_of(step: int) -> dict[str, Any]:
    return {"a": torch.full((300,), float(step)), "step": step}


def fresh_objects() -> FsspecObjects:
    uri = f"memory://{uuid.uuid4().hex}"
    return FsspecObjects(fsspec.filesystem("memory"), fsspec.core.url_to_fs(uri)[1], uri)


class DyingObjects:
    """Passes requests on until the last one, which is carried out or not; from then on nothing is."""

    def __init__(self, inner: FsspecObjects, last: int = 1 << 30, *, does_last: bool = False) -> None:
        self._inner = inner
        self._last = last
        self._does_last = does_last
        self._lock = threading.Lock()
        self.count = 0

    @property
    def uri(self) -> str:
        return self._inner.uri

    def folders(self) -> list[str]:
        self._live()
        return self._inner.folders()

    def sizes(self, folder: str, start: str = "") -> dict[str, int]:
        self._live()
        return self._inner.sizes(folder, start)

    def size(self, key: str) -> int | None:
        self._live()
        return self._inner.size(key)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._live()
        return self._inner.get(key, start, end)

    def put(self, key: str, payload: bytes) -> None:
        if self._live():
            self._inner.put(key, payload)
            self._die()
        self._inner.put(key, payload)

    def put_new(self, key: str, payload: bytes) -> None:
        if self._live():
            self._inner.put_new(key, payload)
            self._die()
        self._inner.put_new(key, payload)

    def put_large(self, key: str, payload: memoryview) -> None:
        if self._live():
            self._inner.put_large(key, payload)
            self._die()
        self._inner.put_large(key, payload)

    def delete(self, keys: Iterable[str]) -> None:
        # An object store deletes one by one, and may die between any two.
        for key in keys:
            if self._live():
                self._inner.delete([key])
                self._die()
            self._inner.delete([key])

    def drop_unfinished(self, is_dead: Callable[[str, float], bool]) -> None:
        self._live()

    def _live(self) -> bool:
        """Count a request; whether it is to be carried out and then be the last."""
        with self._lock:
            self.count += 1
            if self.count > self._last or (self.count == self._last and not self._does_last):
                self._die()
            return self.count == self._last

    def _die(self) -> None:
        raise OSError(errno.EIO, "this process is dead")


def begun() -> FsspecObjects:
    """A store with a committed step 1 of attempt 1, and half of step 7."""
    objects = fresh_objects()
    with Checkpointer("ignored", store=ObjectStore(objects)) as checkpointer:
        checkpointer.save(1, state_of(1), wait=True)
    objects.put("step-000000000007-a1/__0_0.distcp", b"half")
    return objects


def live(objects: DyingObjects) -> None:
    with Checkpointer("ignored", keep=1, store=ObjectStore(objects)) as checkpointer:
        checkpointer.restore(state_of(0))
        for step in (2, 3):
            checkpointer.save(step, state_of(step), wait=True)


@pytest.mark.parametrize("does_last", [False, True], ids=["not carried out", "carried out"])
def test_every_request_of_a_resumed_training_may_be_its_last(does_last: bool) -> None:
    undisturbed = DyingObjects(begun())
    live(undisturbed)
    assert undisturbed.count > 40
    for last in range(1, undisturbed.count + 1):
        objects = begun()
        with suppress(CheckpointError, OSError):
            live(DyingObjects(objects, last, does_last=does_last))
        store = ObjectStore(objects)
        catalogue = Catalogue(store)
        known = catalogue.committed()
        assert known and all(catalogue.verify(each.ref) == [] for each in known), last
        state = state_of(0)
        with Checkpointer("ignored", keep=1, store=store) as checkpointer:
            assert checkpointer.restore(state) == known[-1].step == state["step"], last
            assert state["a"].eq(known[-1].step).all()
            checkpointer.save(9, state_of(9), wait=True)
        assert [each.step for each in catalogue.committed()] == [9], last
        assert objects.folders() == [f"step-000000000009-a{checkpointer.attempt}"], last
