# SPDX-License-Identifier: Apache-2.0
"""What snapshots need of CUDA, as a port that a test can stand in for: streams of a device, events, pinned memory.

Every call names its device. The current device of a thread is nobody's promise: a stream, an event or a context of the
wrong device lets a copy run beside the one that is waited for, or takes memory on a device that the rank does not use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device, not for the current one alone."""


class PinError(Exception):
    """CUDA refuses to pin or unpin memory; training can go on without."""


class Copying(Protocol):
    """Copies of one device that are queued on its side stream."""

    def wait(self) -> None:
        """Return when they are over."""

    def hold(self) -> None:
        """Let what is queued from now on, on the device's current stream of this thread, come after them."""


class Devices(Protocol):
    """The accelerators that tensors may lie on."""

    def device_of(self, tensor: torch.Tensor) -> torch.device | None:
        """Where a tensor lies; None for a tensor in the processor's memory."""

    def copy(self, device: torch.device, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Copying:
        """Queue copies of (target in memory, source on the device), after all that its current stream has to do.

        Raises:
            torch.OutOfMemoryError: there is no room for a contiguous copy; nothing is under way any more.
        """

    def pin(self, memory: torch.Tensor, device: torch.device) -> None:
        """Have memory stay put, so that copies from a device into it are fast and do not hold up the host.

        Raises:
            PinError: CUDA refuses.
        """

    def unpin(self, memory: torch.Tensor, device: torch.device) -> None:
        """Undo `pin`, before the memory goes.

        Raises:
            PinError: CUDA refuses.
        """


class _Queued:
    """Copies by CUDA, up to an event."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device = device
        # A waiting thread that spins would take a core from the step that the copy runs beside.
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def wait(self) -> None:
        with torch.cuda.device(self._device):
            self._event.synchronize()

    def hold(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class Cuda:
    """CUDA by torch; nothing is touched before the first tensor on a device is seen."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def device_of(self, tensor: torch.Tensor) -> torch.device | None:
        return tensor.device if tensor.is_cuda else None

    def copy(self, device: torch.device, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Copying:
        stream = self._stream_of(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(stream):
            try:
                for target, source in pairs:
                    # The allocator may not give the memory away before the copy, however soon the caller drops it.
                    source.record_stream(stream)
                    # Left to `copy_`, a conjugate is resolved in the target by the host, while the copy still runs.
                    target.copy_(source.resolve_conj().resolve_neg(), non_blocking=True)
            except torch.OutOfMemoryError:
                stream.synchronize()
                raise
            return _Queued(device, stream)

    def pin(self, memory: torch.Tensor, device: torch.device) -> None:
        # Made with the memory, so that the first save does not wait for it.
        self._stream_of(device)
        with torch.cuda.device(device):
            self._demand(lambda cudart: cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), _PORTABLE))

    def unpin(self, memory: torch.Tensor, device: torch.device) -> None:
        with torch.cuda.device(device):
            self._demand(lambda cudart: cudart.cudaHostUnregister(memory.data_ptr()))

    def _stream_of(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]

    @staticmethod
    def _demand(call: Callable[[Any], object]) -> None:
        try:
            cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            outcome: Any = call(cudart)
            why = cudart.cudaGetErrorString(outcome) if int(outcome) else None
        except RuntimeError as error:
            # A device that has failed for good answers everything so.
            raise PinError(str(error)) from error
        if why is None:
            return
        # CUDA keeps the error for the next kernel's check, which would end the training with it; this kernel takes it.
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device="cuda")
        raise PinError(f"{why} (error {int(outcome)})")


CUDA: Devices = Cuda()
