# SPDX-License-Identifier: Apache-2.0
"""Shows the ranks' output while they run, read from their files, so that a slow terminal can never hold up a rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.5
MOST_BYTES = 256 * 1024
"""Read at one poll; what a rank writes beyond it is shown later, or skipped when it is far behind."""
FAR_BEHIND_BYTES = 4 * 2**20


class OutputFollower:
    """Follows rank 0, or all ranks, of the attempt that `attempt_folder` names at each poll."""

    def __init__(self, attempt_folder: Callable[[], Path], show: Callable[[int | None, str], None], which: str) -> None:
        self._attempt_folder = attempt_folder
        self._show = show
        self._pattern = "rank-0/std*.log" if which == "rank0" else "rank-*/std*.log"
        self._offsets: dict[Path, int] = {}
        self._rests: dict[Path, bytes] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="output")

    def start(self) -> None:
        self._thread.start()

    def skip_present(self) -> None:
        """Leave out what was written before, when a running attempt is taken over."""
        for path in self._attempt_folder().glob(self._pattern):
            self._offsets[path] = path.stat().st_size

    def close(self) -> None:
        """Show what is left, then end."""
        self._closing.set()
        self._thread.join(POLL_S * 4)

    def _follow(self) -> None:
        while not self._closing.wait(POLL_S):
            self.poll()
        self.poll()

    def poll(self) -> None:
        """Show the lines that are new since the last poll."""
        for path in sorted(self._attempt_folder().glob(self._pattern)):
            rank = int(path.parent.name.rpartition("-")[2])
            for line in self._new_lines(path):
                self._show(rank, line)

    def _new_lines(self, path: Path) -> list[str]:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                offset = self._offsets.get(path, 0)
                if size - offset > FAR_BEHIND_BYTES:
                    offset = size - MOST_BYTES
                file.seek(offset)
                content = file.read(MOST_BYTES)
        except OSError:
            return []
        self._offsets[path] = offset + len(content)
        *lines, rest = (self._rests.get(path, b"") + content).split(b"\n")
        self._rests[path] = rest[-MOST_BYTES:]
        return [line.decode(errors="replace") for line in lines]
