# SPDX-License-Identifier: Apache-2.0
"""Where each tensor lies in the byte image of a rank's `__<rank>_0.distcp` file.

    | head  values  tail | pad | head  values  tail | pad | ... | pickled leaves
      one torch.save stream      one torch.save stream

A stream's bytes around the values depend on dtype and shape alone, so they are made once and a save copies only the
values between them. The zip's CRC-32 of the values is therefore not right: `torch.load` does not look at it, and the
manifest's checksum covers every byte of the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from checkpoint.api import CheckpointError

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Envelope:
    """A `torch.save` stream of one tensor without its values: `head`, then `room` bytes of values, then `tail`."""

    head: bytes
    room: int
    tail: bytes

    @property
    def length(self) -> int:
        return len(self.head) + self.room + len(self.tail)


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor's stream in the image: bytes from `start`, the values from `values` on."""

    start: int
    values: int
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Places of all tensors, in order; `end` is the first byte behind them."""

    places: tuple[Place, ...]
    end: int

    def draw(self, image: memoryview) -> None:
        """Write everything but the values into an image of at least `end` bytes; what lies between becomes zero."""
        previous = 0
        for place in self.places:
            envelope = place.envelope
            after = place.values + envelope.room
            image[previous : place.start] = bytes(place.start - previous)
            image[place.start : place.values] = envelope.head
            image[after : after + len(envelope.tail)] = envelope.tail
            previous = after + len(envelope.tail)
        image[previous : self.end] = bytes(self.end - previous)


class Envelopes:
    """Makes envelopes and keeps them: an optimizer's moments have the shapes of their parameters."""

    def __init__(self) -> None:
        self._known: dict[tuple[torch.dtype, tuple[int, ...]], Envelope] = {}

    def of(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Envelope:
        """The envelope of a contiguous CPU tensor.

        Raises:
            CheckpointError: this PyTorch writes a stream in a way that we do not know.
        """
        key = (dtype, shape)
        envelope = self._known.get(key)
        if envelope is None:
            envelope = self._known[key] = _make_envelope(dtype, shape)
        return envelope


def lay_out(tensors: Iterable[tuple[torch.dtype, tuple[int, ...]]], envelopes: Envelopes) -> ImageLayout:
    """Put tensors of these kinds one behind the other, each aligned for the processor's widest loads."""
    places = []
    end = 0
    for dtype, shape in tensors:
        envelope = envelopes.of(dtype, shape)
        places.append(Place(end, end + len(envelope.head), envelope))
        end = aligned(end + envelope.length, _ALIGNMENT_BYTES)
    return ImageLayout(tuple(places), end)


def aligned(offset: int, alignment: int) -> int:
    """The next multiple of an alignment, both in bytes."""
    return -(-offset // alignment) * alignment


class _Tracing:
    """A file that takes a stream without the values: torch seeks over them, which tells where they belong."""

    def __init__(self) -> None:
        self.parts: list[bytes] = [b""]
        self.holes: list[int] = []

    def write(self, payload: bytes | memoryview) -> int:
        self.parts[-1] += bytes(payload)
        return len(payload)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 1:
            raise OSError("only seeks over a tensor's values are expected")
        self.holes.append(offset)
        self.parts.append(b"")
        return sum(map(len, self.parts)) + sum(self.holes)

    def flush(self) -> None:
        """Nothing is buffered here; torch's writer asks for it."""


def _make_envelope(dtype: torch.dtype, shape: tuple[int, ...]) -> Envelope:
    # Never touched, so that the kernel gives no memory for it.
    tensor = torch.empty(shape, dtype=dtype)
    room = tensor.numel() * tensor.element_size()
    stream = _Tracing()
    with torch.serialization.skip_data():
        torch.save(tensor, stream)  # type: ignore[arg-type]
    if stream.holes != ([room] if room else []):
        raise CheckpointError(
            f"PyTorch {torch.__version__} saves a {dtype} tensor of shape {shape} with gaps of {stream.holes} bytes "
            f"instead of one of {room}; this version is not supported"
        )
    head, *rest = stream.parts
    if not room:
        return Envelope(head, 0, b"")
    if len(head) % _ALIGNMENT_BYTES:
        raise CheckpointError(
            f"PyTorch {torch.__version__} puts values at byte {len(head)} of a stream; set "
            "torch.utils.serialization.config.save.storage_alignment to a multiple of 64"
        )
    return Envelope(head, room, b"".join(rest))
