# SPDX-License-Identifier: Apache-2.0
"""Images that are filled in place read as what torch.save would have written."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.serialization import config

from checkpoint.api import CheckpointError
from checkpoint.layout import Envelopes, lay_out

_DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex128, torch.float8_e4m3fn)
_kinds = st.tuples(st.sampled_from(_DTYPES), st.lists(st.integers(0, 5), max_size=3).map(tuple))


def raw(tensor: torch.Tensor) -> list[int]:
    """Its bytes: a NaN is as good a value as any."""
    return tensor.flatten().view(torch.uint8).tolist()


def filled(kinds: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> tuple[bytes, list[torch.Tensor]]:
    """An image of tensors with random values, on memory that was dirty before, and the tensors."""
    layout = lay_out(kinds, Envelopes())
    image = bytearray(b"\xff" * layout.end)
    layout.draw(memoryview(image))
    tensors = []
    for (dtype, shape), place in zip(kinds, layout.places, strict=True):
        values = torch.randint(0, 2, (place.envelope.room,), dtype=torch.uint8)
        image[place.values : place.values + place.envelope.room] = bytes(values.tolist())
        tensors.append(values.view(dtype).reshape(shape) if values.numel() else torch.empty(shape, dtype=dtype))
    return bytes(image), tensors


@given(st.lists(_kinds, max_size=6))
@settings(max_examples=50)
def test_every_tensor_is_read_back_by_torch_load(kinds: list[tuple[torch.dtype, tuple[int, ...]]]) -> None:
    image, tensors = filled(kinds)
    layout = lay_out(kinds, Envelopes())
    for tensor, place in zip(tensors, layout.places, strict=True):
        assert place.values % 64 == 0 or not tensor.numel()
        stream = image[place.start : place.start + place.envelope.length]
        loaded = torch.load(io.BytesIO(stream), weights_only=True)
        assert loaded.dtype == tensor.dtype and loaded.shape == tensor.shape and loaded.is_contiguous()
        assert raw(loaded) == raw(tensor)


def test_what_lies_between_streams_is_zero_on_dirty_memory() -> None:
    kinds = [(torch.float32, (3,)), (torch.float32, (5,))]
    image, _ = filled(kinds)
    first, second = lay_out(kinds, Envelopes()).places
    assert not any(image[first.start + first.envelope.length : second.start])


def test_an_alignment_that_spoils_ours_is_refused() -> None:
    with (
        config.patch({"save.storage_alignment": 8}),  # type: ignore[attr-defined]
        pytest.raises(CheckpointError, match="storage_alignment to a multiple of 64"),
    ):
        lay_out([(torch.float32, (3,))], Envelopes())
