# SPDX-License-Identifier: Apache-2.0
"""What a writer holds in memory of ranks that are dead, until somebody restores from it or newer saves are durable."""

from __future__ import annotations

from collections.abc import Iterable

from checkpoint.held import HeldImage
from checkpoint.holding import Holding
from checkpoint.wire import Hello


class Shelf:
    """Holdings by launch and rank."""

    def __init__(self) -> None:
        self._holdings: dict[tuple[str, int], Holding] = {}

    def put(self, hello: Hello, holding: Holding) -> None:
        """Keep what a rank has left; nothing if it has left nothing whole."""
        if holding.images():
            self._holdings[hello.launch, hello.rank] = holding
        else:
            holding.close(remove=True)

    def images(self) -> list[HeldImage]:
        """All that is held."""
        return [image for holding in self._holdings.values() for image in holding.images()]

    def release(self, snapshots: Iterable[tuple[int, int, str]]) -> None:
        """Give the memory of snapshots back, each told by step, attempt and launch."""
        doomed = {(step, attempt, launch) for step, attempt, launch in snapshots}
        for key, holding in list(self._holdings.items()):
            for image in holding.images():
                if (image.ref.step, image.ref.attempt, image.launch) in doomed:
                    holding.release(image)
            if not holding.images():
                self._holdings.pop(key).close(remove=True)

    def keep_only(self, launch: str) -> None:
        """Give everything of other launches back."""
        for key in [each for each in self._holdings if each[0] != launch]:
            self._holdings.pop(key).close(remove=True)

    def clear(self) -> None:
        """Give everything back."""
        for holding in self._holdings.values():
            holding.close(remove=True)
        self._holdings.clear()
