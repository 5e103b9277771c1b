# SPDX-License-Identifier: Apache-2.0
"""What a rank writes into its ring: one layout for all kinds of record, of fixed size.

    crc32 | kind | present | phase | sequence | step | position | wall | monotonic
          | loss | grad_norm | tokens | 4 times | text

The checksum covers the sequence number, so a record that is half written, half overwritten, or seen out of order by
another core never passes for a whole one. That needs neither a lock nor a memory barrier.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass

_CHECKSUM = struct.Struct("<I")
_BODY = struct.Struct("<BBHQqqQQddqffff24s")
RECORD_BYTES = _CHECKSUM.size + _BODY.size

_HAS_LOSS = 1
_HAS_GRAD_NORM = 2


class Kind(enum.IntEnum):
    """What a record tells."""

    STEP = 1
    """A step is done."""
    PHASE_ENTERED = 2
    """A known pause has begun; `phase` is its number in the ring's table of names."""
    PHASE_LEFT = 3
    """The known pause `phase` is over."""
    RESTORED = 4
    """The training loop begins after `step` steps; 0 is a start from scratch."""
    FINISHED = 5
    """The interpreter ended in order. Only the exit code tells whether it succeeded."""
    EXCEPTION = 6
    """An exception that nobody caught ends the script; `text` is its type's name."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds spent outside the step's own work since the record of the step before."""

    data: float = 0.0
    """Waiting for the loader."""
    evaluation: float = 0.0
    checkpoint: float = 0.0
    other: float = 0.0
    """In phases of any other name."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a ring."""

    kind: Kind
    sequence: int
    """1, 2, 3, ... without gaps over the life of the ring."""
    step: int
    position: int | None
    """Index of the batch that this step trained on; None when the script does not iterate by `run.batches`."""
    wall_ns: int
    """Nanoseconds since 1970, of the rank's clock."""
    monotonic_ns: int
    """CLOCK_MONOTONIC, the same clock in all processes of the node."""
    loss: float | None = None
    grad_norm: float | None = None
    tokens: int = 0
    phase: int = 0
    times: Times = Times()
    text: str = ""


def encoded(
    kind: int,
    sequence: int,
    step: int,
    position: int,
    wall_ns: int,
    monotonic_ns: int,
    loss: float | None = None,
    grad_norm: float | None = None,
    tokens: int = 0,
    phase: int = 0,
    times: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
    text: bytes = b"",
) -> bytes:
    """Return the record's bytes; a position of -1 stands for none.

    Takes plain values instead of a `Record`, because building one costs as much as the rest of a report.
    """
    present = 0
    if loss is None:
        loss = 0.0
    else:
        present = _HAS_LOSS
    if grad_norm is None:
        grad_norm = 0.0
    else:
        present |= _HAS_GRAD_NORM
    body = _BODY.pack(
        kind, present, phase, sequence, step, position, wall_ns, monotonic_ns, loss, grad_norm, tokens, *times, text
    )
    return _CHECKSUM.pack(zlib.crc32(body)) + body


def decoded(raw: bytes) -> Record | None:
    """Return the record, or None when the bytes are not one whole record."""
    (checksum,) = _CHECKSUM.unpack_from(raw)
    body = raw[_CHECKSUM.size :]
    if checksum != zlib.crc32(body):
        return None
    kind, present, phase, sequence, step, position, wall, monotonic, loss, grad_norm, tokens, *rest = _BODY.unpack(body)
    return Record(
        kind=Kind(kind),
        sequence=sequence,
        step=step,
        position=None if position < 0 else position,
        wall_ns=wall,
        monotonic_ns=monotonic,
        loss=loss if present & _HAS_LOSS else None,
        grad_norm=grad_norm if present & _HAS_GRAD_NORM else None,
        tokens=tokens,
        phase=phase,
        times=Times(*rest[:4]),
        text=rest[4].rstrip(b"\0").decode(errors="replace"),
    )


def clipped(text: str, size: int) -> bytes:
    """Return at most `size` bytes of UTF-8 that end at a character's end."""
    return text.encode(errors="replace")[:size].decode(errors="ignore").encode()
