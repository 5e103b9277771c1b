# SPDX-License-Identifier: Apache-2.0
"""Keeps the logs of an attempt below their limit, beside the agent's loop: compressing takes seconds."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from supervisor.agent import logs

_EVERY_S = 15.0
_LOWEST_PRIORITY = 19


class Rotation:
    """One thread at a time, of the lowest priority."""

    def __init__(self, attempt_folder: Path, limit_bytes: int) -> None:
        self._folder = attempt_folder
        self._limit_bytes = limit_bytes
        self._next_at = time.monotonic() + _EVERY_S
        self._thread: threading.Thread | None = None
        self._left_alone: set[Path] = set()
        self._notes: list[str] = []

    def tick(self, ranks: Sequence[tuple[int, int]]) -> None:
        """Look at the logs of these (rank, local rank), if it is time to."""
        if time.monotonic() < self._next_at or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_at = time.monotonic() + _EVERY_S
        paths = [path for rank, _ in ranks for path in logs.of_rank(self._folder, rank).both]
        paths += [self._folder / "launcher.out", self._folder / "launcher.err"]
        large = [path for path in dict.fromkeys(paths) if path not in self._left_alone and self._is_large(path)]
        if large:
            self._thread = threading.Thread(target=self._rotate, args=(large,), name="rotation", daemon=True)
            self._thread.start()

    def taken_notes(self) -> list[str]:
        """Lines for a person, each once."""
        notes, self._notes = self._notes, []
        return notes

    def _is_large(self, path: Path) -> bool:
        try:
            return path.stat().st_size > self._limit_bytes
        except OSError:
            return False

    def _rotate(self, paths: list[Path]) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        for path in paths:
            try:
                logs.rotate(path, self._limit_bytes)
            except (OSError, logs.RotationRefusedError) as error:
                self._left_alone.add(path)
                self._notes.append(f"{path} keeps growing, its oldest part cannot be compressed away: {error}")
