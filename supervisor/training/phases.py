# SPDX-License-Identifier: Apache-2.0
"""Where the time between two steps went: each moment is charged to the innermost phase it lies in.

Pure: the caller passes the time, so nested phases can be tested without a clock.
"""

from __future__ import annotations

DATA, EVALUATION, CHECKPOINT, OTHER = range(4)
"""Indexes of the charges, in the order of `records.Times`."""

_CHARGED = {"data": DATA, "evaluation": EVALUATION, "checkpoint": CHECKPOINT}

LEAVING_PHASE = "leaving"
"""Behind the loop over the batches: a last save, an export and the way out have no steps, and are no hang."""

Charges = tuple[float, float, float, float]


class PhaseClock:
    """The phases that are open, and the seconds charged since they were last taken."""

    __slots__ = ("_charged_to_ns", "_open", "_seconds")

    def __init__(self) -> None:
        self._open: list[tuple[int, int, int]] = []
        self._charged_to_ns = 0
        self._seconds = [0.0, 0.0, 0.0, 0.0]

    def enter(self, name: str, number: int, now_ns: int) -> None:
        """Open the phase `name`, which has this number in the ring."""
        self._charge(now_ns)
        self._open.append((number, _CHARGED.get(name, OTHER), now_ns))

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def leave(self, now_ns: int) -> tuple[int, int] | None:
        """Close the innermost phase; return the number and the begin of the one around it, None for none."""
        self._charge(now_ns)
        self._open.pop()
        if not self._open:
            return None
        number, _, since_ns = self._open[-1]
        return number, since_ns

    def waited_for_data(self, seconds: float) -> None:
        """Charge time spent in the loader."""
        self._seconds[DATA] += seconds

    def taken(self, now_ns: int) -> Charges:
        """Return the seconds charged since the last call."""
        if self._open:
            self._charge(now_ns)
        data, evaluation, checkpoint, other = self._seconds
        self._seconds = [0.0, 0.0, 0.0, 0.0]
        return data, evaluation, checkpoint, other

    def _charge(self, now_ns: int) -> None:
        if self._open:
            self._seconds[self._open[-1][1]] += (now_ns - self._charged_to_ns) / 1e9
        self._charged_to_ns = now_ns
