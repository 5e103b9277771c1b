# SPDX-License-Identifier: Apache-2.0
"""Restores from snapshots that nodes still hold in memory, their own ranks' and a peer node's.

A snapshot counts when every part of it is held by some node of the job. A rank copies what its own node holds straight
from there; the rest comes from ranks of other nodes, as the parts of a file do.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint.api import CheckpointError, CheckpointRef, DamagedFile
from checkpoint.commit import build_metadata
from checkpoint.held import HeldImage
from checkpoint.holding import checksum_of
from checkpoint.manifest import MANIFEST, FileRecord, size_damage
from checkpoint.passing import Parcel, Reach
from checkpoint.plan import encode_paths, merge
from checkpoint.ranks import Ranks
from checkpoint.reading import Findings, Source
from checkpoint.record import decode_record, file_of
from checkpoint.restore import Contents
from checkpoint.slab import Slab


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A whole snapshot in memory: each file's size and checksum, and the ranks (of now) whose nodes hold it."""

    ref: CheckpointRef
    launch: str
    serial: int
    files: Mapping[str, FileRecord]
    holders: Mapping[str, frozenset[int]]


def whole_snapshots(held: Sequence[Sequence[HeldImage]]) -> dict[CheckpointRef, HeldSnapshot]:
    """The snapshots of which every part is held by some rank's node; of two of one step the later one.

    Args:
        held: for each rank what its node holds.
    """
    found: dict[tuple[CheckpointRef, int, str, int], dict[int, dict[FileRecord, set[int]]]] = {}
    for rank, images in enumerate(held):
        for image in images:
            parts = found.setdefault((image.ref, image.serial, image.launch, image.world_size), {})
            parts.setdefault(image.rank, {}).setdefault(image.file, set()).add(rank)
    whole = {}
    for (ref, serial, launch, world_size), parts in sorted(found.items(), key=lambda each: each[0]):
        files, holders = {}, {}
        for part in range(world_size):
            versions = parts.get(part, {})
            if len(versions) != 1:
                break
            ((files[file_of(part)], ranks),) = versions.items()
            holders[file_of(part)] = frozenset(ranks)
        else:
            whole[ref] = HeldSnapshot(ref, launch, serial, files, holders)
    return whole


class MemoryTier:
    """One snapshot that is held in memory; `here` is what this rank's node holds. Close it after use."""

    lends = True

    def __init__(self, snapshot: HeldSnapshot, here: Sequence[HeldImage], ranks: Ranks) -> None:
        self._snapshot = snapshot
        self._ranks = ranks
        self._slabs: dict[str, Slab | str] = {}
        for each in here:
            if (each.ref, each.serial, each.launch) == (snapshot.ref, snapshot.serial, snapshot.launch):
                self._slabs[file_of(each.rank)] = _attached(each)

    def contents(self) -> Contents | list[DamagedFile]:
        """The ranks' records, merged by rank 0 as for a commit."""
        own = {name: self._record_of(name) for name, reach in self._reach().items() if reach.reader == self._ranks.rank}
        gathered = self._ranks.at_first(own)
        seen: Contents | list[DamagedFile] = []
        if gathered is not None:
            try:
                seen = self._merged({name: record for told in gathered for name, record in told.items()})
            except (ValueError, CheckpointError) as error:
                seen = [DamagedFile(MANIFEST, str(error))]
        return self._ranks.from_first(seen)

    def reach(self, contents: Contents) -> dict[str, Reach]:
        return {name: reach for name, reach in self._reach().items() if name in contents.files}

    def source(
        self, contents: Contents, reach: Mapping[str, Reach], parcels: Mapping[str, Sequence[Parcel]]
    ) -> AbstractContextManager[Source]:
        own = [name for name in sorted(reach) if reach[name].reader == self._ranks.rank]
        wanted = {name for name, each in parcels.items() if any(self._ranks.rank in parcel.ranks for parcel in each)}
        slabs = {name: slab for name, slab in self._slabs.items() if name in wanted or name in own}
        return closing(MemorySource(slabs, contents.files, own))

    def confirmed(self, damage: list[DamagedFile]) -> list[DamagedFile]:
        """There is no second look: a damaged snapshot is not taken, and the next tier is."""
        return damage

    def close(self) -> None:
        """Let go of the slabs."""
        for slab in self._slabs.values():
            if isinstance(slab, Slab):
                slab.close()
        self._slabs.clear()

    def _reach(self) -> dict[str, Reach]:
        return {name: Reach(min(ranks), ranks) for name, ranks in self._snapshot.holders.items()}

    def _record_of(self, name: str) -> bytes:
        slab = self._slabs[name]
        return slab.record if isinstance(slab, Slab) else b""

    def _merged(self, records: Mapping[str, bytes]) -> Contents:
        """What the parts make together.

        Raises:
            ValueError: a record is damaged, or gone.
            PlanError: they do not make one whole checkpoint.
        """
        plans = []
        for name, record in records.items():
            plans.append(replace(decode_record(record).plan, files={name: self._snapshot.files[name]}))
        merged = merge(sorted(plans, key=lambda plan: plan.rank))
        metadata = pickle.dumps(build_metadata(merged, save_id=str(self._snapshot.ref)))
        return Contents(metadata, encode_paths(merged.paths), merged.files)


class MemorySource:
    """Slabs of this node; those of which this rank is the reader are hashed while they are read."""

    lasts = True

    def __init__(self, slabs: Mapping[str, Slab | str], files: Mapping[str, FileRecord], own: Sequence[str]) -> None:
        self._found = Findings()
        self._slabs: dict[str, Slab] = {}
        self._files = files
        self._pool = ThreadPoolExecutor(1, "checkpoint-hash")
        self._hashed: dict[str, Future[FileRecord]] = {}
        for name, slab in slabs.items():
            why = slab if isinstance(slab, str) else size_damage(files[name], slab.image_length)
            if why or isinstance(slab, str):
                self._found.damage.append(DamagedFile(name, why))
            else:
                self._slabs[name] = slab
        for name in own:
            if name in self._slabs:
                self._hashed[name] = self._pool.submit(checksum_of, self._slabs[name])

    def read(self, name: str, parcels: Sequence[Parcel]) -> Iterator[memoryview]:
        slab = self._slabs.get(name)
        for parcel in parcels:
            if slab is None:
                yield memoryview(bytearray(parcel.length))
            else:
                yield slab.image[parcel.start : parcel.start + parcel.length]

    def findings(self) -> Findings:
        for name, hashed in self._hashed.items():
            if hashed.result() != self._files[name]:
                why = f"its checksum is {hashed.result().xxh3} instead of {self._files[name].xxh3}"
                self._found.damage.append(DamagedFile(name, why))
        return self._found

    def close(self) -> None:
        """End the hashing."""
        self._pool.shutdown()


def _attached(image: HeldImage) -> Slab | str:
    """The slab, or why it cannot be had."""
    try:
        return Slab.attach(Path(image.slab), populate=False)
    except OSError as error:
        return f"it is held no more: {error}"
