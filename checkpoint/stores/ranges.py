# SPDX-License-Identifier: Apache-2.0
"""Reads an object as a stream, several ranges of it at a time: one connection alone is slow."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_RANGE_BYTES = 16 << 20
_AHEAD = 4


class RangeReader(io.RawIOBase):
    """A stream that can seek; ranges behind the place where it is read are fetched ahead."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._at = 0
        self._pool = ThreadPoolExecutor(_AHEAD, "checkpoint-ranges")
        self._ahead: deque[tuple[int, Future[bytes]]] = deque()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self._size or not view:
            return 0
        start, payload = self._range()
        part = memoryview(payload)[self._at - start : self._at - start + len(view)]
        if not part:
            raise OSError(f"a range from {start} ended after {len(payload)} bytes")
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        if not self.closed:
            for _, fetched in self._ahead:
                fetched.cancel()
            self._pool.shutdown()
        super().close()

    def _range(self) -> tuple[int, bytes]:
        """The range in which the next byte lies, and where it starts."""
        start = self._at - self._at % _RANGE_BYTES
        if self._ahead and not any(at == start for at, _ in self._ahead):
            self._drop()
        while self._ahead and self._ahead[0][0] < start:
            self._ahead.popleft()
        following = self._ahead[-1][0] + _RANGE_BYTES if self._ahead else start
        while len(self._ahead) < _AHEAD and following < self._size:
            end = min(following + _RANGE_BYTES, self._size)
            self._ahead.append((following, self._pool.submit(self._fetch, following, end)))
            following = end
        return start, self._ahead[0][1].result()

    def _drop(self) -> None:
        for _, fetched in self._ahead:
            fetched.cancel()
        self._ahead.clear()
