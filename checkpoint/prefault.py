# SPDX-License-Identifier: Apache-2.0
"""Has the kernel give memory before it is written to, in the background.

A page that is touched for the first time costs a fault, and a state has a quarter of a million of them in every GiB:
several times what copying its values costs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import torch

_PAGE_BYTES = 4096
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of linux/mman.h; kernels before 5.14 refuse it, and pages then come one by one as ever."""


class Prefault:
    """Works through fresh tensors from the last to the first, while somebody fills them from the first to the last."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._ranges = [found for each in tensors if (found := _pages_of(each)) is not None]
        self._is_over = threading.Event()
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._thread = threading.Thread(target=self._run, name="checkpoint-prefault", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it; call this before the tensors go."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        for start, length in reversed(self._ranges):
            if self._is_over.is_set():
                return
            if self._madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _POPULATE_WRITE):
                return


def _pages_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Address and length of the whole pages that a tensor on the processor fills alone."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    start = -(-begin // _PAGE_BYTES) * _PAGE_BYTES
    length = (begin + size - start) // _PAGE_BYTES * _PAGE_BYTES
    return (start, length) if length > 0 else None
