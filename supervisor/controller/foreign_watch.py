# SPDX-License-Identifier: Apache-2.0
"""Tells the core of the checkpoints that a script keeps in its own way, which announces none.

A thread of its own looks, so that a file system that hangs holds up nothing else. It is not waited for at the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from checkpoint.api import CheckpointError
from supervisor.core.api import Checkpoint, events

LOOK_S = 10.0

_log = logging.getLogger(__name__)


class ForeignWatch:
    """Puts a CheckpointCommitted for each checkpoint that has appeared since the last look."""

    def __init__(
        self,
        listed: Callable[[], tuple[Checkpoint, ...] | None],
        put: Callable[[events.Event], None],
        attempt: Callable[[], int],
        look_s: float = LOOK_S,
    ) -> None:
        self._listed = listed
        self._put = put
        self._attempt = attempt
        self._look_s = look_s
        self._known: frozenset[Checkpoint] = frozenset()
        self._is_closed = threading.Event()
        self._why_not = ""

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="foreign-checkpoints").start()

    def close(self) -> None:
        self._is_closed.set()

    def look(self) -> None:
        """One look; what cannot be listed is logged once, and looked for again."""
        try:
            found = self._listed() or ()
        except (CheckpointError, OSError) as error:
            if str(error) != self._why_not:
                _log.warning("the script's checkpoints cannot be listed: %s", error)
            self._why_not = str(error)
            return
        self._why_not = ""
        for each in found:
            if each not in self._known:
                self._put(events.CheckpointCommitted(time.time(), self._attempt(), each))
        self._known = frozenset(found)

    def _watch(self) -> None:
        while not self._is_closed.wait(self._look_s):
            self.look()
