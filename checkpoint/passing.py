# SPDX-License-Identifier: Apache-2.0
"""Which bytes of a checkpoint's files go to which ranks, and by which way. Pure.

A file is read by its reader alone. What other ranks need of it travels along a chain, from the reader to the first of
them, from that one to the next, so that no rank sends anything twice however many need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_PARCEL_BYTES = 32 << 20
"""Small pieces go together up to this size; it bounds what a rank holds of them, and what fills the chain."""
_GAP_BYTES = 4096
"""Padding between pieces is carried along up to this size."""


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """A piece of a file that is read as a whole, in bytes."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Parcel:
    """Neighbouring extents of one file that the same ranks need."""

    extents: tuple[Extent, ...]
    ranks: tuple[int, ...]

    @property
    def start(self) -> int:
        return self.extents[0].start

    @property
    def length(self) -> int:
        return self.extents[-1].end - self.start


@dataclass(frozen=True, slots=True)
class Reach:
    """Who can read a file: all `ranks` with it at hand (the same node's memory), of which `reader` serves the rest."""

    reader: int
    ranks: frozenset[int]


def encode_needs(extents: Sequence[Extent], needed: Iterable[Extent]) -> bytes:
    """Which of a file's extents a rank needs, a bit for each; every rank knows the extents in the same order."""
    places = {extent: place for place, extent in enumerate(extents)}
    bits = 0
    for extent in needed:
        bits |= 1 << places[extent]
    return bits.to_bytes((len(extents) + 7) // 8, "little")


def parcels_of(extents: Sequence[Extent], needs: Mapping[int, bytes]) -> list[Parcel]:
    """Cut a file into parcels, in order; what no rank needs is in none.

    Args:
        extents: all of the file's, by place, without overlaps.
        needs: for each rank that needs anything of the file, what `encode_needs` has made of it.
    """
    # At scale most ranks need the very same of a file, so that what is done for each extent is done once for all those.
    alike: dict[bytes, list[int]] = {}
    for rank, needed in sorted(needs.items()):
        alike.setdefault(needed, []).append(rank)
    bits = [int.from_bytes(needed, "little") for needed in alike]
    members = list(alike.values())
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    parcels: list[list[Extent]] = []
    whose: list[tuple[int, ...]] = []
    for place, extent in enumerate(extents):
        key = tuple(index for index, needed in enumerate(bits) if needed >> place & 1)
        if not key:
            continue
        if parcels and whose[-1] == key and _fits(parcels[-1], extent):
            parcels[-1].append(extent)
        else:
            parcels.append([extent])
            whose.append(key)
            known.setdefault(key, tuple(sorted(rank for index in key for rank in members[index])))
    return [Parcel(tuple(each), known[key]) for each, key in zip(parcels, whose, strict=True)]


def chain_of(parcel: Parcel, reach: Reach) -> tuple[int, ...]:
    """The ranks that a parcel passes through, its reader first; those that have the file at hand need no passing on."""
    return (reach.reader, *(rank for rank in parcel.ranks if rank not in reach.ranks and rank != reach.reader))


def share_files(names: Iterable[str], size: int) -> dict[str, Reach]:
    """Give each file of a store one reader, in the files' order: those of a world of the same size read their own.

    Every rank computes the same. Files are about equal in size, since a save shares the state out evenly.
    """
    ordered = sorted(names, key=lambda name: (len(name), name))
    readers = [place * size // len(ordered) for place in range(len(ordered))]
    return {name: Reach(reader, frozenset({reader})) for name, reader in zip(ordered, readers, strict=True)}


def _fits(parcel: Sequence[Extent], extent: Extent) -> bool:
    return extent.start - parcel[-1].end <= _GAP_BYTES and extent.end - parcel[0].start <= _PARCEL_BYTES
