# SPDX-License-Identifier: Apache-2.0
"""What NCCL's watchdog lines say when they are laid side by side.

A time-out is a symptom whose event lies one time-out earlier. Ranks that name the same collective wait for the one
that prints nothing; ranks that name different collectives under one number run different code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_TIMEOUT = re.compile(
    r"WorkNCCL\((?:SeqNum=(\d{1,12}), )?OpType=(\w+)(?:, NumelIn=(\d{1,15}), NumelOut=(\d{1,15}))?,"
    r" Timeout\(ms\)=(\d{1,12})\) ran for (\d{1,15}) milliseconds"
)
_FROZEN_RATIO = 3.0
_FIRST_COLLECTIVES = 20


@dataclass(frozen=True, slots=True)
class CollectiveTimeout:
    """One rank's watchdog line; `sequence` and `elements` are None in the versions of torch that do not print them."""

    rank: int | None
    sequence: int | None
    operation: str
    elements: tuple[int, int] | None
    limit_ms: int
    ran_ms: int


@dataclass(frozen=True, slots=True)
class TimeoutReading:
    """What several time-outs say together."""

    is_frozen: bool
    is_mismatch: bool
    missing_ranks: tuple[int, ...]
    note: str


def parse_timeout(text: str, rank: int | None) -> CollectiveTimeout | None:
    """Read a watchdog line; None when it holds no numbers."""
    found = _TIMEOUT.search(text)
    if found is None:
        return None
    sequence, operation, numel_in, numel_out, limit, ran = found.groups()
    elements = (int(numel_in), int(numel_out)) if numel_in and numel_out else None
    return CollectiveTimeout(rank, int(sequence) if sequence else None, operation, elements, int(limit), int(ran))


def read_timeouts(
    timeouts: Sequence[CollectiveTimeout], speaking: Iterable[int], world_size: int | None
) -> TimeoutReading:
    """Compare the time-outs of all ranks; `speaking` are the ranks that print any time-out line."""
    is_frozen = any(t.limit_ms > 0 and t.ran_ms > _FROZEN_RATIO * t.limit_ms for t in timeouts)
    is_mismatch = not is_frozen and _is_mismatch(timeouts)
    missing: tuple[int, ...] = ()
    heard = set(speaking)
    if world_size is not None and heard and 2 * len(heard) > world_size:
        missing = tuple(sorted(set(range(world_size)) - heard))
    return TimeoutReading(is_frozen, is_mismatch, missing, _note(timeouts, missing))


def _is_mismatch(timeouts: Sequence[CollectiveTimeout]) -> bool:
    seen: dict[int, tuple[int | None, str, tuple[int, int] | None]] = {}
    for timeout in timeouts:
        if timeout.sequence is None:
            continue
        rank, operation, elements = seen.setdefault(
            timeout.sequence, (timeout.rank, timeout.operation, timeout.elements)
        )
        if rank != timeout.rank and (operation, elements) != (timeout.operation, timeout.elements):
            return True
    return False


def _note(timeouts: Sequence[CollectiveTimeout], missing: tuple[int, ...]) -> str:
    parts: list[str] = []
    if timeouts:
        seconds = timeouts[0].limit_ms / 1000
        parts.append(f"The event lies about {seconds:.0f} s before the first of these lines.")
        first = timeouts[0].sequence
        if timeouts[0].elements == (1, 1) or (first is not None and first < _FIRST_COLLECTIVES):
            parts.append(
                "It is a barrier or one of the first collectives, so a slow rank 0 (index build, download,"
                " checkpoint) is likelier than the network."
            )
    if missing:
        parts.append(f"Ranks that print no time-out: {', '.join(map(str, missing[:8]))}.")
    return " ".join(parts)
