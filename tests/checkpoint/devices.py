# SPDX-License-Identifier: Apache-2.0
"""Two devices at the port of `checkpoint.cuda`, as adverse as CUDA may be: whatever is queued runs as late as it can.

Work waits in its stream until somebody waits for it, or for something behind it. A copy that nobody waited for has not
happened, and one that a change of its source does not wait for comes after the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from checkpoint.cuda import PinError


class Stream:
    """A queue; an entry is done together with all before it."""

    def __init__(self) -> None:
        self._queue: list[Callable[[], None]] = []

    def put(self, work: Callable[[], None]) -> int:
        """Queue work; returns its number."""
        self._queue.append(work)
        return len(self._queue)

    def run(self, until: int | None = None) -> None:
        """Do what is queued, up to a number."""
        for index in range(len(self._queue) if until is None else until):
            work, self._queue[index] = self._queue[index], _nothing
            work()


def _nothing() -> None:
    """Done work."""


class LateCopies:
    """Copies queued on a side stream."""

    def __init__(self, side: Stream, current: Stream, end: int, failure: str) -> None:
        self._side, self._current, self._end, self._failure = side, current, end, failure

    def wait(self) -> None:
        if self._failure:
            raise RuntimeError(self._failure)
        self._side.run(self._end)

    def hold(self) -> None:
        self._current.put(lambda: self._side.run(self._end))


class LateDevices:
    """Tensors lie where `place` says; `full` devices have no memory left; with `refuses` none is pinned or let go."""

    def __init__(self) -> None:
        self._places: dict[int, torch.device] = {}
        self.current: dict[torch.device, Stream] = {}
        self.side: dict[torch.device, Stream] = {}
        self.full: set[torch.device] = set()
        self.refuses = False
        self.failure = ""
        """What every wait for a copy answers, once a kernel has failed."""
        self.pinned: dict[int, tuple[int, torch.device]] = {}

    def place(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        device = torch.device("cuda", index)
        self._places[tensor.data_ptr()] = device
        self.current.setdefault(device, Stream())
        self.side.setdefault(device, Stream())
        return tensor

    def queue(self, tensor: torch.Tensor, work: Callable[[], object]) -> None:
        """What the training does to a tensor, on its device's current stream."""
        self.current[self._places[tensor.data_ptr()]].put(lambda: void(work()))

    def device_of(self, tensor: torch.Tensor) -> torch.device | None:
        return self._places.get(tensor.data_ptr())

    def copy(self, device: torch.device, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> LateCopies:
        current, side = self.current[device], self.side[device]
        if device in self.full:
            raise torch.OutOfMemoryError(f"{device} is full")
        before = current.put(_nothing)
        side.put(lambda: current.run(before))
        for target, source in pairs:
            assert self.device_of(source) == device
            end = side.put(lambda target=target, source=source: void(target.copy_(source)))  # type: ignore[misc]
        return LateCopies(side, current, end, self.failure)

    def pin(self, memory: torch.Tensor, device: torch.device) -> None:
        if self.refuses:
            raise PinError("not permitted (error 800)")
        assert memory.data_ptr() not in self.pinned, "CUDA answers 712 to memory that is pinned already"
        self.pinned[memory.data_ptr()] = (memory.numel(), device)

    def unpin(self, memory: torch.Tensor, device: torch.device) -> None:
        if self.refuses:
            raise PinError("the device has failed (error 710)")
        assert self.pinned.pop(memory.data_ptr()) == (memory.numel(), device)


def void(_value: object) -> None:
    """Only the effect counts."""
