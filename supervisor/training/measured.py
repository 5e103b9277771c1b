# SPDX-License-Identifier: Apache-2.0
"""Writes steps whose loss may still be on an accelerator, without waiting for it.

`item()` on a device tensor waits until the device has done everything queued so far. So the value is copied to pinned
memory behind the queued work, an event is recorded after the copy, and the step is written at a later call that finds
the event done. Steps stay in order. On an accelerator, a step that the device never finishes is never written.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import Protocol, SupportsFloat, cast

from supervisor.training.phases import Charges
from supervisor.training.ring import RingWriter

WAITING_STEPS = 64
"""Steps kept back at most; the oldest beyond that is written without what the device owes it, and is counted."""


class _Event(Protocol):
    def record(self) -> None: ...

    def query(self) -> bool: ...


class _DeviceTensor(Protocol):
    def detach(self) -> _DeviceTensor: ...

    def to(self, device: str, *, non_blocking: bool) -> SupportsFloat: ...


@dataclass(frozen=True, slots=True)
class _Step:
    step: int
    position: int
    at_ns: tuple[int, int]
    loss: SupportsFloat | None
    grad_norm: SupportsFloat | None
    tokens: int
    times: Charges
    event: _Event | None


class StepLog:
    """The steps of a run on their way into its ring."""

    __slots__ = ("_ring", "_unmeasured", "_waiting")

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self._waiting: deque[_Step] = deque()
        self._unmeasured = 0

    def add(
        self,
        step: int,
        position: int,
        at_ns: tuple[int, int],
        loss: SupportsFloat | None,
        grad_norm: SupportsFloat | None,
        tokens: int,
        times: Charges,
    ) -> None:
        """Write the step, now or when its values are there."""
        if not self._waiting and not _is_on_device(loss) and not _is_on_device(grad_norm):
            self._ring.step(step, position, at_ns, _plain(loss), _plain(grad_norm), tokens, times)
            return
        is_late = _is_on_device(loss) or _is_on_device(grad_norm)
        loss, grad_norm = _copied(loss), _copied(grad_norm)
        event = _recorded_event() if is_late else None
        if len(self._waiting) >= WAITING_STEPS:
            self._give_up()
        self._waiting.append(_Step(step, position, at_ns, loss, grad_norm, tokens, times, event))
        self.write_ready()

    def write_ready(self) -> None:
        """Write the oldest waiting steps whose values have come."""
        while self._waiting and _is_done(self._waiting[0].event):
            each = self._waiting.popleft()
            values = (_plain(each.loss), _plain(each.grad_norm))
            self._ring.step(each.step, each.position, each.at_ns, *values, each.tokens, each.times)

    def close(self) -> None:
        """Write all waiting steps, those without values too."""
        self.write_ready()
        while self._waiting:
            self._give_up()
            self.write_ready()

    def _give_up(self) -> None:
        each = self._waiting.popleft()
        values = (_known(each.loss), _known(each.grad_norm))
        self._unmeasured += 1
        self._ring.unmeasured(self._unmeasured)
        self._ring.step(each.step, each.position, each.at_ns, *values, each.tokens, each.times)


def _is_on_device(value: SupportsFloat | None) -> bool:
    return type(value) is not float and getattr(value, "is_cuda", False)


def _plain(value: SupportsFloat | None) -> float | None:
    if value is None or type(value) is float:
        return value
    # float() of a tensor that requires a gradient warns; item() does not.
    item = getattr(value, "item", None)
    return float(value if item is None else item())


def _known(value: SupportsFloat | None) -> float | None:
    return value if type(value) is float else None


def _copied(value: SupportsFloat | None) -> SupportsFloat | None:
    if not _is_on_device(value):
        return _plain(value)
    return cast("_DeviceTensor", value).detach().to("cpu", non_blocking=True)


def _recorded_event() -> _Event:
    event = cast("_Event", sys.modules["torch"].cuda.Event())
    event.record()
    return event


def _is_done(event: _Event | None) -> bool:
    if event is None:
        return True
    try:
        return event.query()
    except RuntimeError:
        # The device has failed; the script's own next call says so, in its own words.
        return False
