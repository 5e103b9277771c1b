# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's flight recorders of all ranks say side by side: who did not join, and who called something else.

A recorder numbers the collectives of each process group. The rank with the smallest number is the one that the others
wait for, unless it waits for somebody else in another group. With gloo the numbers are strings, `state` stays at
`scheduled`, and the newest completed one lags behind, so only the enqueued one counts.
(torch/csrc/distributed/c10d/FlightRecorder.hpp, dump version 2.10)
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST_NAMED = 8
_PICKLE = b"\x80\x02"
"""How NCCL's dump begins: c10 pickles with protocol 2."""
_OF_ALL = "default_pg"
_EQUAL_SIZES = ("all_reduce", "allreduce", "broadcast", "_all_gather_base", "_reduce_scatter_base")
"""Collectives whose tensors have one size on all ranks; of others the sizes may differ."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as a rank called it."""

    operation: str
    sizes: str = ""
    dtypes: str = ""

    def __str__(self) -> str:
        return f"{self.operation}{self.sizes}"

    def fits(self, other: Call) -> bool:
        """Whether ranks that call these two under one number can complete them together."""
        if self.operation != other.operation:
            return False
        is_sized = any(self.operation.endswith(name) for name in _EQUAL_SIZES)
        return not is_sized or (self.sizes, self.dtypes) == (other.sizes, other.dtypes)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One process group of one rank: the newest collective that it enqueued, and the last ones by their number."""

    enqueued: int
    completed: int = 0
    calls: Mapping[int, Call] = field(default_factory=dict)


Record = Mapping[str, GroupRecord]
"""A rank's groups by backend and name."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks that called different collectives under one number of one group."""

    group: str
    sequence: int
    calls: Mapping[int, Call]

    @property
    def odd_rank(self) -> int | None:
        """The only rank that called something else than all others, where there are at least three."""
        for rank, call in self.calls.items():
            rest = [other for each, other in self.calls.items() if each != rank]
            if len(rest) > 1 and not any(call.fits(other) for other in rest) and all(rest[0].fits(o) for o in rest):
                return rank
        return None

    def __str__(self) -> str:
        told = ", ".join(f"rank {rank} {call}" for rank, call in sorted(self.calls.items())[:_MOST_NAMED])
        return f"collective {self.sequence} of group {self.group}: {told}"


@dataclass(frozen=True, slots=True)
class Absence:
    """Ranks that did not join a collective, while they wait for nobody themselves."""

    ranks: tuple[int, ...]
    group: str
    enqueued: int
    """Their newest collective of the group."""
    waited_for: int
    """The newest collective of the others."""
    call: Call | None

    def __str__(self) -> str:
        call = "" if self.call is None else f" ({self.call})"
        last = f"last enqueued is collective {self.enqueued} of group {self.group}"
        return f"{last}, the others wait in {self.waited_for}{call}"


def parse_record(content: bytes) -> Record | None:
    """A dump as the worker server gives it (JSON) or as NCCL writes it (pickle); None when it is neither."""
    try:
        dump = _Plain(io.BytesIO(content)).load() if content.startswith(_PICKLE) else json.loads(content)
    except (ValueError, RecursionError, pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError):
        return None
    if not isinstance(dump, dict):
        return None
    try:
        return _record(dump)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError):
        return None


class _Plain(pickle.Unpickler):  # it can make nothing but plain values
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a flight recorder's dump holds no {module}.{name}")


def _record(dump: Mapping[str, Any]) -> Record:
    calls: dict[str, dict[int, Call]] = {}
    names: dict[str, str] = {}
    for entry in dump.get("entries", ()):
        if entry.get("is_p2p"):
            continue
        backend, _, operation = str(entry["profiling_name"]).partition(":")
        name, purpose = entry["process_group"]
        group = f"{backend}/{_OF_ALL if purpose == _OF_ALL else name}"
        names[str(entry["pg_id"])] = group
        call = Call(operation, _sizes(entry.get("input_sizes")), str(entry.get("input_dtypes", "")))
        calls.setdefault(group, {})[int(entry["collective_seq_id"])] = call
    found = {
        names[number]: GroupRecord(
            int(status.get("last_enqueued_collective", 0)),
            int(status.get("last_completed_collective", 0)),
            calls[names[number]],
        )
        for number, status in dump.get("pg_status", {}).items()
        if number in names
    }
    for group, known in calls.items():
        found.setdefault(group, GroupRecord(max(known), calls=known))
    return found


def _sizes(value: object) -> str:
    return str(value).replace(" ", "") if value else ""


def mismatch(records: Mapping[int, Record]) -> Mismatch | None:
    """The first collective, among those that have not been completed by all, that ranks called differently."""
    found: list[Mismatch] = []
    for group, by_rank in _groups(records):
        done = min(record.completed for record in by_rank.values())
        pending = {number for record in by_rank.values() for number in record.calls if number > done}
        for number in sorted(pending):
            calls = {rank: record.calls[number] for rank, record in by_rank.items() if number in record.calls}
            first = next(iter(calls.values()))
            if not all(first.fits(call) for call in calls.values()):
                found.append(Mismatch(group, number, calls))
                break
    return found[0] if found else None


def absence(records: Mapping[int, Record]) -> Absence | None:
    """The ranks that have the smallest number in some group and are ahead of nobody in any other; None if nobody is."""
    waiting: set[int] = set()
    behind: dict[int, tuple[str, int, int]] = {}
    for group, by_rank in _groups(records):
        numbers = {rank: record.enqueued for rank, record in by_rank.items()}
        least, most = min(numbers.values()), max(numbers.values())
        if least == most:
            continue
        waiting.update(rank for rank, number in numbers.items() if number > least)
        for rank, number in numbers.items():
            if number == least:
                behind.setdefault(rank, (group, least, most))
    absent = sorted(set(behind) - waiting)
    if not absent:
        return None
    group, least, most = behind[absent[0]]
    others = (record[group].calls.get(least + 1) for record in records.values() if group in record)
    call = next((each for each in others if each is not None), None)
    return Absence(tuple(absent), group, least, most, call)


def _groups(records: Mapping[int, Record]) -> Iterator[tuple[str, dict[int, GroupRecord]]]:
    """Every group that at least two ranks know.

    Every rank is a member of gloo's default group, so one that recorded nothing of it has not joined it yet. NCCL's
    dump is a file of its own that may just be missing.
    """
    names = dict.fromkeys(group for record in records.values() for group in record)
    for group in names:
        by_rank = {rank: record[group] for rank, record in records.items() if group in record}
        if group == f"gloo/{_OF_ALL}":
            by_rank = {rank: by_rank.get(rank, GroupRecord(0)) for rank in records}
        if len(by_rank) > 1:
            yield group, by_rank
