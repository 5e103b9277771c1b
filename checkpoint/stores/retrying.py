# SPDX-License-Identifier: Apache-2.0
"""Tries again what an object store refused for the moment, and says once that it is away and once that it is back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from checkpoint.stores.objects import AwayError, Objects

_log = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 10.0
Result = TypeVar("Result")


class RetriedObjects:
    """`Objects` that wait for a store which is away, with jitter, as long as it asks for, until the deadline.

    An outage that is longer fails the save, and the next one tries again.
    """

    def __init__(self, inner: Objects, *, deadline_s: float = 60.0, shortest_s: float = 0.2) -> None:
        self._inner = inner
        self._retrying = Retrying(
            retry=retry_if_exception_type(AwayError),
            wait=_wait(shortest_s),
            before_sleep=self._tell_away,
            reraise=True,
        )
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._is_away = False

    @property
    def uri(self) -> str:
        return self._inner.uri

    def folders(self) -> list[str]:
        return self._try(self._inner.folders)

    def sizes(self, folder: str, start: str = "") -> dict[str, int]:
        return self._try(lambda: self._inner.sizes(folder, start))

    def size(self, key: str) -> int | None:
        return self._try(lambda: self._inner.size(key))

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self._try(lambda: self._inner.get(key, start, end))

    def put(self, key: str, payload: bytes) -> None:
        self._try(lambda: self._inner.put(key, payload))

    def put_new(self, key: str, payload: bytes) -> None:
        """When an answer was lost the object may be there since our own first try, which its content tells."""
        try:
            self._try(lambda: self._inner.put_new(key, payload))
        except FileExistsError:
            if self.get(key) != payload:
                raise

    def put_large(self, key: str, payload: memoryview) -> None:
        self._try(lambda: self._inner.put_large(key, payload))

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        self._try(lambda: self._inner.delete(doomed))

    def drop_unfinished(self, is_dead: Callable[[str, float], bool]) -> None:
        self._try(lambda: self._inner.drop_unfinished(is_dead))

    def _try(self, work: Callable[[], Result]) -> Result:
        result = self._retrying.copy(stop=_since_first_failure(self._deadline_s))(work)
        with self._lock:
            was_away, self._is_away = self._is_away, False
        if was_away:
            _log.warning("store is back uri=%s", self.uri)
        return result

    def _tell_away(self, state: RetryCallState) -> None:
        with self._lock:
            was_away, self._is_away = self._is_away, True
        if not was_away and state.outcome is not None:
            _log.warning("store is away, trying again uri=%s why=%s", self.uri, state.outcome.exception())


def _since_first_failure(deadline_s: float) -> Callable[[RetryCallState], bool]:
    """Patience begins with the first failure: an upload may go well for longer than that before."""
    first: list[float] = []

    def is_over(_state: RetryCallState) -> bool:
        now = time.monotonic()
        first.append(now)
        return now - first[0] >= deadline_s

    return is_over


def _wait(shortest_s: float) -> Callable[[RetryCallState], float]:
    jittered = wait_random_exponential(multiplier=shortest_s, max=_LONGEST_PAUSE_S)

    def pause(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after_s if isinstance(error, AwayError) else None
        return jittered(state) if asked is None else asked + jittered(state) / 10

    return pause
