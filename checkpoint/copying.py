# SPDX-License-Identifier: Apache-2.0
"""Copies live tensors into a slab with every idle core, or from CUDA devices by streams of their own.

A copy reads the tensors until it is over: weights may change only when `hold` or `wait` has returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from checkpoint.cuda import CUDA, Copying, Devices

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that may still be under way, on threads and on the streams of devices."""

    parts: Sequence[Future[None]]
    queued: Sequence[Copying]

    def wait(self) -> None:
        """Return when every byte is in the slab."""
        for part in self.parts:
            part.result()
        for each in self.queued:
            each.wait()

    def hold(self) -> None:
        """Let what this thread does next to the tensors come after the copy; on CUDA the host does not wait."""
        for part in self.parts:
            part.result()
        for each in self.queued:
            each.hold()


@dataclass(slots=True)
class _Block:
    """A run of bytes by its addresses; or, when `target` is given, a tensor to copy element by element.

    It keeps the source, whose memory may have no other user once the save has returned.
    """

    source: torch.Tensor
    to: int = 0
    origin: int = 0
    length: int = 0
    target: torch.Tensor | None = None

    def move(self) -> None:
        if self.target is not None:
            self.target.copy_(self.source)
        else:
            ctypes.memmove(self.to, self.origin, self.length)


class Copier:
    """Owns the threads; `threads` is how many cores may copy at once, the caller's included."""

    def __init__(self, threads: int, devices: Devices = CUDA) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "checkpoint-copy")
        self.devices = devices

    def start(
        self, target: torch.Tensor, offsets: Sequence[int], sources: Sequence[torch.Tensor], *, join: bool
    ) -> Copy:
        """Copy each source to its byte offset in the target, a tensor of bytes in memory.

        With `join` this thread copies its share and returns when CPU tensors are copied; else it returns at once.

        Raises:
            torch.OutOfMemoryError: a device has no room for what a copy needs on the way.
        """
        blocks: list[_Block] = []
        pairs: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for offset, source in zip(offsets, sources, strict=True):
            device = self.devices.device_of(source)
            if device is not None:
                pairs.setdefault(device, []).append((_view(target, offset, source), source))
            elif source.numel():
                blocks += _blocks(target, offset, source)
        queued = self._queue(pairs)
        # All threads take from one iterator, so that a core that is busy elsewhere holds up one block at most.
        left = iter(blocks)
        helpers = min(self._threads, len(blocks)) - (1 if join else 0)
        parts = [self._pool.submit(_move, left) for _ in range(helpers)]
        if join:
            _move(left)
            for part in parts:
                part.result()
        return Copy(parts, queued)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _queue(self, pairs: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]]) -> list[Copying]:
        queued: list[Copying] = []
        try:
            for device, each in pairs.items():
                queued.append(self.devices.copy(device, each))
        except torch.OutOfMemoryError:
            # The slot is used again, which no copy of another device may still write to.
            for started in queued:
                started.wait()
            raise
        return queued


def _move(blocks: Iterator[_Block]) -> None:
    for block in blocks:
        block.move()


def _blocks(target: torch.Tensor, offset: int, source: torch.Tensor) -> Iterator[_Block]:
    is_plain = type(source) is torch.Tensor and source.device.type == "cpu" and source.is_contiguous()
    if not is_plain or source.is_conj() or source.is_neg():
        yield _Block(source, target=_view(target, offset, source))
        return
    to, origin = target.data_ptr() + offset, source.data_ptr()
    length = source.numel() * source.element_size()
    for start in range(0, length, _CHUNK_BYTES):
        yield _Block(source, to + start, origin + start, min(_CHUNK_BYTES, length - start))


def _view(target: torch.Tensor, offset: int, source: torch.Tensor) -> torch.Tensor:
    """The place of a tensor's values in memory, as a contiguous tensor of its kind."""
    return target[offset : offset + source.numel() * source.element_size()].view(source.dtype).view(source.shape)
