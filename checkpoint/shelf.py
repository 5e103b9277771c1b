# SPDX-License-Identifier: Apache-2.0
"""What a writer holds in memory of ranks that are dead and of peers, until it has served or is superseded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from checkpoint.held import HeldImage
from checkpoint.holding import Holding
from checkpoint.slab import Slab

_REPLICAS = 2
_Key = tuple[str, int, bool]
"""Launch, rank, and whether it is a replica."""


class Shelf:
    """Holdings by launch and rank. Threads that receive replicas use it beside the writer's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holdings: dict[_Key, Holding] = {}
        self._released: set[tuple[int, int, str]] = set()

    def put(self, launch: str, rank: int, holding: Holding) -> None:
        """Keep what a rank has left; nothing if it has left nothing whole, or all of that has served already."""
        for image in holding.images():
            if _name_of(image) in self._released:
                holding.release(image)
        if holding.images():
            self._replace((launch, rank, False), holding)
        else:
            holding.close(remove=True)

    def put_replica(self, slab: Slab, image: HeldImage) -> None:
        """Keep a replica, and the one before it; those before that are given back."""
        with self._lock:
            holding = self._holdings.setdefault((image.launch, image.rank, True), Holding())
            for each in holding.images():
                if each.serial == image.serial:
                    holding.release(each)
            holding.adopt(slab, image)
            for each in holding.images()[:-_REPLICAS]:
                holding.release(each)

    def images(self) -> list[HeldImage]:
        """All that is held."""
        with self._lock:
            return [image for holding in self._holdings.values() for image in holding.images()]

    def release(self, snapshots: Iterable[tuple[int, int, str]]) -> None:
        """Give the memory of snapshots back, each told by step, attempt and launch; of late comers, too."""
        doomed = {(step, attempt, launch) for step, attempt, launch in snapshots}
        with self._lock:
            # What was released before belongs to a launch before the last, of which nothing comes any more.
            self._released = doomed
            for key, holding in list(self._holdings.items()):
                for image in holding.images():
                    if _name_of(image) in doomed:
                        holding.release(image)
                if not holding.images():
                    self._holdings.pop(key).close(remove=True)

    def keep_only(self, is_kept: Callable[[str], bool]) -> None:
        """Give everything of other launches back."""
        self._drop(lambda key: not is_kept(key[0]))

    def clear(self) -> None:
        """Give everything back."""
        self._drop(lambda _key: True)

    def _replace(self, key: _Key, holding: Holding) -> None:
        with self._lock:
            before = self._holdings.get(key)
            self._holdings[key] = holding
        if before is not None:
            before.close(remove=True)

    def _drop(self, is_doomed: Callable[[_Key], bool]) -> None:
        with self._lock:
            doomed = [self._holdings.pop(key) for key in list(self._holdings) if is_doomed(key)]
        for holding in doomed:
            holding.close(remove=True)


def _name_of(image: HeldImage) -> tuple[int, int, str]:
    return image.ref.step, image.ref.attempt, image.launch
