# SPDX-License-Identifier: Apache-2.0
"""Copies live tensors into a slab with every idle core, or from a CUDA device by a stream of its own.

A copy reads the tensors until it is over: weights may change only when `hold` or `wait` has returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that may still be under way, on threads or on a CUDA stream."""

    parts: Sequence[Future[None]]
    event: torch.cuda.Event | None

    def wait(self) -> None:
        """Return when every byte is in the slab."""
        for part in self.parts:
            part.result()
        if self.event is not None:
            self.event.synchronize()

    def hold(self) -> None:
        """Let what this thread does next to the tensors come after the copy; on CUDA the host does not wait."""
        for part in self.parts:
            part.result()
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)


@dataclass(slots=True)
class _Block:
    """A run of bytes by its addresses; or, when `source` is given, a tensor to copy element by element."""

    to: int
    origin: int
    length: int
    target: torch.Tensor | None = None
    source: torch.Tensor | None = None

    def move(self) -> None:
        if self.target is not None and self.source is not None:
            self.target.copy_(self.source)
        else:
            ctypes.memmove(self.to, self.origin, self.length)


class Copier:
    """Owns the threads and the stream; `threads` is how many cores may copy at once, the caller's included."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "checkpoint-copy")
        self._stream: torch.cuda.Stream | None = None

    def start(
        self, target: torch.Tensor, offsets: Sequence[int], sources: Sequence[torch.Tensor], *, join: bool
    ) -> Copy:
        """Copy each source to its byte offset in the target, a tensor of bytes in memory.

        With `join` this thread copies its share and returns when CPU tensors are copied; else it returns at once.
        """
        blocks: list[_Block] = []
        device_pairs = []
        for offset, source in zip(offsets, sources, strict=True):
            if source.is_cuda:
                device_pairs.append((_view(target, offset, source), source))
            elif source.numel():
                blocks += _blocks(target, offset, source)
        event = self._copy_from_device(device_pairs) if device_pairs else None
        # All threads take from one iterator, so that a core that is busy elsewhere holds up one block at most.
        left = iter(blocks)
        helpers = min(self._threads, len(blocks)) - (1 if join else 0)
        parts = [self._pool.submit(_move, left) for _ in range(helpers)]
        if join:
            _move(left)
            for part in parts:
                part.result()
        return Copy(parts, event)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _copy_from_device(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.cuda.Event:
        """Queue copies behind what the current stream has to do; the tensors' memory stays theirs until then."""
        stream = self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
                source.record_stream(stream)
            event.record(stream)
        return event


def _move(blocks: Iterator[_Block]) -> None:
    for block in blocks:
        block.move()


def _blocks(target: torch.Tensor, offset: int, source: torch.Tensor) -> Iterator[_Block]:
    is_plain = type(source) is torch.Tensor and source.device.type == "cpu" and source.is_contiguous()
    if not is_plain or source.is_conj() or source.is_neg():
        yield _Block(0, 0, 0, _view(target, offset, source), source)
        return
    to, origin = target.data_ptr() + offset, source.data_ptr()
    length = source.numel() * source.element_size()
    for start in range(0, length, _CHUNK_BYTES):
        yield _Block(to + start, origin + start, min(_CHUNK_BYTES, length - start))


def _view(target: torch.Tensor, offset: int, source: torch.Tensor) -> torch.Tensor:
    """The place of a tensor's values in memory, as a contiguous tensor of its kind."""
    return target[offset : offset + source.numel() * source.element_size()].view(source.dtype).view(source.shape)
