# SPDX-License-Identifier: Apache-2.0
"""Follows the ranks' logs of the newest attempt, to show them; what is shown is never what is kept.

The logs are read where the agents keep them, so a slow reader costs lines on the screen and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_S = 0.5
_MOST_BYTES = 256 * 1024
"""Of one log at one poll; what is further behind is left out."""

Show = Callable[[int | None, str], None]


class OutputTail:
    """`poll` shows what has been written since the last one; not safe for two threads at once."""

    def __init__(self, attempts: Path, show: Show, *, every_rank: bool) -> None:
        self._attempts = attempts
        self._show = show
        self._every_rank = every_rank
        self._attempt: Path | None = None
        self._seen: dict[Path, int] = {}
        self._partial: dict[Path, bytes] = {}
        self._is_first = True

    def poll(self) -> None:
        """Logs that were there before the first poll are shown from their end on."""
        newest = max(self._attempts.glob("[0-9]*"), default=None)
        if newest is not None and newest != self._attempt:
            self._drain()
            self._attempt, self._seen, self._partial = newest, {}, {}
        self._drain()
        self._is_first = False

    def _drain(self) -> None:
        if self._attempt is None:
            return
        for rank, path in self._logs(self._attempt):
            try:
                self._follow(rank, path)
            except OSError:
                continue  # gone or not there yet; the next poll looks again

    def _logs(self, attempt: Path) -> Iterator[tuple[int | None, Path]]:
        folders = sorted(attempt.glob("rank-*")) if self._every_rank else [attempt / "rank-0"]
        for folder in folders:
            number = folder.name.removeprefix("rank-")
            if number.isdecimal():
                yield int(number), folder / "stdout.log"
                yield int(number), folder / "stderr.log"
        if self._every_rank and (attempt / "torchrun").is_dir():
            yield None, attempt / "launcher.err"

    def _follow(self, rank: int | None, path: Path) -> None:
        size = path.stat().st_size
        if path not in self._seen:
            self._seen[path] = size if self._is_first else 0
        begin = self._seen[path]
        if size <= begin:
            return
        with path.open("rb") as file:
            if size - begin > _MOST_BYTES:
                self._show(rank, f"({size - begin - _MOST_BYTES} bytes of output are not shown; see {path})")
                begin = size - _MOST_BYTES
                self._partial.pop(path, None)
            file.seek(begin)
            chunk = file.read(size - begin)
        self._seen[path] = begin + len(chunk)
        *lines, rest = (self._partial.pop(path, b"") + chunk).split(b"\n")
        for line in lines:
            self._show(rank, line.decode(errors="replace"))
        if rest:
            self._partial[path] = rest[-_MOST_BYTES:]


class TailThread:
    """Polls until it is closed, and once more then."""

    def __init__(self, tail: OutputTail) -> None:
        self._tail = tail
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def close(self, limit_s: float = 2.0) -> None:
        self._end.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._end.wait(POLL_S):
            self._tail.poll()
        self._tail.poll()
