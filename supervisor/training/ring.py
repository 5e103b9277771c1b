# SPDX-License-Identifier: Apache-2.0
"""The ring by which a rank tells its node's agent what it does: mapped memory, one writer, no lock, no system call.

    identity | live words | role | checkpoint URI | phase names      4096 bytes
    record 0 | record 1 | ... | record 4095                          oldest overwritten first

The writer never waits for a reader. A reader that is slower than the ring loses the oldest records and counts
them. The live words are updated in place, so liveness needs no scan.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from supervisor.training import pages
from supervisor.training.records import RECORD_BYTES, Kind, Record, clipped, decoded, encoded

CAPACITY = 4096
"""Records held."""

_MAGIC = b"SUPRING\0"
_VERSION = 1
_IDENTITY = struct.Struct("<8sIIIIiiiIQQ")
_HEADER_BYTES = 4096
_SIZE = _HEADER_BYTES + CAPACITY * RECORD_BYTES

_WRITTEN, _ACTIVE, _STEP, _PHASE, _PHASE_SINCE, _UNMEASURED = range(
    16, 22
)  # live words, by index into the page's words
_ROLE = slice(256, 512)
_PHASES_AT = 1536
_PHASE_BYTES = 48
_PHASE_COUNT = 53
_OTHER_PHASE = _PHASE_COUNT - 1


class RingError(Exception):
    """The file is not a ring that this version can read."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes a ring."""

    pid: int
    rank: int
    local_rank: int
    world_size: int
    attempt: int
    started_wall_ns: int
    """Nanoseconds since 1970 at which the ring was made."""
    started_monotonic_ns: int


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rank does now."""

    last_ns: int
    """CLOCK_MONOTONIC of its last sign of life: a step, a batch, a phase entered or left."""
    step: int
    """Last step reported, or the step that it began from."""
    phase: str | None
    """Innermost known pause it is in."""
    phase_since_ns: int
    """CLOCK_MONOTONIC at which it entered that pause."""
    unmeasured: int
    """Steps whose loss or norm was given up, because the device did not deliver it in time."""


class RingWriter:
    """The rank's end of the ring."""

    def __init__(self, path: Path, *, rank: int, local_rank: int, world_size: int, attempt: int) -> None:
        """Make the ring; a reader never sees half a header.

        Raises:
            OSError: the folder cannot be written, or the disk is full.
        """
        now = time.monotonic_ns()
        started = (time.time_ns(), now)
        identity = (os.getpid(), rank, local_rank, world_size, attempt)
        head = bytearray(_HEADER_BYTES)
        _IDENTITY.pack_into(head, 0, _MAGIC, _VERSION, RECORD_BYTES, CAPACITY, *identity, *started)
        struct.pack_into("<Q", head, _ACTIVE * 8, now)
        head[_phase_slot(_OTHER_PHASE)] = b"other".ljust(_PHASE_BYTES, b"\0")
        self._page = pages.create(path, _SIZE, bytes(head))
        self._bytes = self._page.bytes
        self._words = self._page.words
        self._phases: dict[str, int] = {}
        # Taking the next number is one uninterruptible call, so two threads never write the same slot.
        self._numbers = itertools.count()

    def step(
        self,
        step: int,
        position: int,
        at_ns: tuple[int, int],
        loss: float | None,
        grad_norm: float | None,
        tokens: int,
        times: tuple[float, float, float, float],
    ) -> None:
        """Write a step; `at_ns` is (wall, monotonic), `times` are the fields of `Times`."""
        number = next(self._numbers)
        self._put(number, encoded(Kind.STEP, number + 1, step, position, *at_ns, loss, grad_norm, tokens, 0, times))

    def note(self, kind: Kind, step: int, *, position: int = -1, phase: int = 0, text: str = "") -> None:
        """Write a record of another kind, and a sign of life."""
        number, now = next(self._numbers), time.monotonic_ns()
        self._put(
            number,
            encoded(kind, number + 1, step, position, time.time_ns(), now, phase=phase, text=clipped(text, 24)),
        )
        self._words[_ACTIVE] = now

    def _put(self, number: int, record: bytes) -> None:
        begin = _HEADER_BYTES + number % CAPACITY * RECORD_BYTES
        self._bytes[begin : begin + RECORD_BYTES] = record
        self._words[_WRITTEN] = number + 1

    def stand_at(self, step: int, now_ns: int) -> None:
        """Show the step that is done."""
        self._words[_STEP] = step
        self._words[_ACTIVE] = now_ns

    def alive(self, now_ns: int) -> None:
        """Show a sign of life."""
        self._words[_ACTIVE] = now_ns

    def enter(self, phase: int, now_ns: int) -> None:
        """Show a phase that begins now.

        The time goes first: a reader between the two stores must not see the new phase with the old time.
        """
        self._words[_PHASE_SINCE] = now_ns
        self._words[_PHASE] = phase

    def leave(self, outer: int, outer_since_ns: int) -> None:
        """Show the phase around the one that ended, 0 for none."""
        self._words[_PHASE] = outer
        self._words[_PHASE_SINCE] = outer_since_ns

    def unmeasured(self, count: int) -> None:
        """Show how many steps lack a value."""
        self._words[_UNMEASURED] = count

    def phase_number(self, name: str) -> int:
        """Return the number of a phase's name, entered into the table; names beyond the table share `other`."""
        number = self._phases.get(name)
        if number is None:
            number = min(len(self._phases) + 1, _OTHER_PHASE)
            if number != _OTHER_PHASE:
                self._bytes[_phase_slot(number)] = clipped(name, _PHASE_BYTES).ljust(_PHASE_BYTES, b"\0")
                self._phases[name] = number
        return number

    def set_role(self, role: str) -> None:
        """Show which part of the model the rank holds, such as `pipeline=0,tensor=3`."""
        self._bytes[_ROLE] = clipped(role, 256).ljust(256, b"\0")

    def close(self) -> None:
        """Unmap the ring; the file stays for the reader."""
        self._page.close()


class RingReader:
    """The agent's end of a ring, which may be read while it is written or after its writer died."""

    def __init__(self, path: Path) -> None:
        """Map a ring.

        Raises:
            OSError: the file cannot be opened.
            RingError: it is not a ring of this version.
        """
        try:
            self._page = pages.Page(path, is_writable=False)
        except ValueError as error:
            raise RingError(f"{path} is empty; wait for the rank to make its ring") from error
        found: tuple[object, ...] = ()
        if len(self._page.bytes) >= _IDENTITY.size:
            found = _IDENTITY.unpack_from(self._page.bytes)
        if found[:4] != (_MAGIC, _VERSION, RECORD_BYTES, CAPACITY) or len(self._page.bytes) != _SIZE:
            self._page.close()
            raise RingError(
                f"{path} is no ring of version {_VERSION}; run the same version of this package in the training "
                "environment and in the agent"
            )
        self.identity = Identity(*_IDENTITY.unpack_from(self._page.bytes)[4:])
        self.dropped = 0
        """Records that were overwritten before they were read."""
        self._next = 0

    def is_current(self) -> bool:
        """Tell whether the path still names this ring; after a restart in place the rank has made a new one."""
        return self._page.is_current()

    @property
    def role(self) -> str:
        """What `set_role` showed, or empty."""
        return _text(self._page.bytes[_ROLE])

    def phase_name(self, number: int) -> str:
        """Return the name of a record's `phase`.

        Raises:
            ValueError: there is no such number.
        """
        if not 0 < number < _PHASE_COUNT:
            raise ValueError(f"phases are numbered 1 to {_OTHER_PHASE}, not {number}")
        return _text(self._page.bytes[_phase_slot(number)])

    def activity(self) -> Activity:
        """Return what the rank does now; each field is true, but they may be of moments some nanoseconds apart."""
        words = self._page.words
        phase = words[_PHASE]
        return Activity(
            last_ns=words[_ACTIVE],
            step=words[_STEP],
            phase=self.phase_name(phase) if phase else None,
            phase_since_ns=words[_PHASE_SINCE],
            unmeasured=words[_UNMEASURED],
        )

    def poll(self) -> list[Record]:
        """Return the whole records written since the last poll, oldest first, each one once."""
        records: list[Record] = []
        while len(records) < CAPACITY:
            record = self._slot(self._next)
            if record is not None and record.sequence == self._next + 1:
                records.append(record)
                self._next += 1
                continue
            oldest = self._oldest(record)
            if oldest <= self._next:
                break
            self.dropped += oldest - self._next
            self._next = oldest
        return records

    def _slot(self, number: int) -> Record | None:
        begin = _HEADER_BYTES + number % CAPACITY * RECORD_BYTES
        return decoded(self._page.bytes[begin : begin + RECORD_BYTES])

    def _oldest(self, found: Record | None) -> int:
        """Return the oldest number that can still be whole.

        The slot after the newest record may be half overwritten already, for ever if the writer was killed there.
        A newer record in our slot proves an overrun even if the count of written records is not visible yet.
        """
        by_count: int = self._page.words[_WRITTEN] - CAPACITY + 1
        by_slot = found.sequence - CAPACITY if found is not None else 0
        return max(by_count, by_slot)

    def close(self) -> None:
        """Unmap the ring."""
        self._page.close()


def _phase_slot(number: int) -> slice:
    begin = _PHASES_AT + number * _PHASE_BYTES
    return slice(begin, begin + _PHASE_BYTES)


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
