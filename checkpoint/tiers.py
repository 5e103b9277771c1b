# SPDX-License-Identifier: Apache-2.0
"""Reads one checkpoint from where it lies, on all ranks together, into a restoration that only has to be applied."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, Protocol, TypeVar

import xxhash

from checkpoint.api import CheckpointError, CheckpointRef, DamagedFile, Store
from checkpoint.lineage import folder_of
from checkpoint.manifest import MANIFEST, METADATA, STRUCTURE, damaged_files, load_manifest, size_damage
from checkpoint.passing import Parcel, Reach, encode_needs, parcels_of, share_files
from checkpoint.prefault import Prefault
from checkpoint.ranks import Ranks
from checkpoint.reading import Findings, Source, StoreSource, exchange
from checkpoint.restore import Contents, Restoration

Result = TypeVar("Result")


class Tier(Protocol):
    """One checkpoint in a place where it lies. All methods are collective but `source` and `close`.

    Whoever reads it closes it when the restoration is applied. `lends` says that until then a restoration may refer to
    bytes where they lie, instead of copying them.
    """

    lends: bool

    def contents(self) -> Contents | list[DamagedFile]:
        """What a checkpoint consists of, or what is damaged in it at first sight."""

    def reach(self, contents: Contents) -> dict[str, Reach]:
        """Who reads which file."""

    def source(
        self,
        contents: Contents,
        reach: Mapping[str, Reach],
        parcels: Mapping[str, Sequence[Parcel]],
    ) -> AbstractContextManager[Source]:
        """This rank's part of the files."""

    def confirmed(self, damage: list[DamagedFile]) -> list[DamagedFile]:
        """What is left of reported damage when one rank looks at everything itself."""

    def close(self) -> None:
        """Let go of what was read."""


def read(tier: Tier, state: dict[str, Any], ranks: Ranks, *, rank: int) -> Restoration | list[DamagedFile]:
    """Read a checkpoint wholly; every byte is verified, and nothing is changed. Damage comes back, the same everywhere.

    Args:
        rank: whose random state is wanted.

    Raises:
        StateMismatchError: it does not fit the state of some rank.
        CheckpointError: it may not be read, or the ranks do not see the same files.
    """
    contents = tier.contents()
    if not isinstance(contents, Contents):
        return contents
    restoration = agreed(ranks, lambda: Restoration(contents, state, rank=rank))
    decoder = restoration.decoder
    extents = {name: restoration.extents.get(name, []) for name in contents.files}
    needs = ranks.everyones({name: encode_needs(extents[name], each) for name, each in decoder.needs().items()})
    parcels = {
        name: parcels_of(extents[name], {other: each[name] for other, each in enumerate(needs) if name in each})
        for name in contents.files
    }
    reach = tier.reach(contents)
    with tier.source(contents, reach, parcels) as source, closing(Prefault(restoration.fresh(is_lent=tier.lends))):
        exchange(ranks, source, reach, parcels, decoder.take)
        found = ranks.everyones(source.findings())
    if damage := _damage(tier, found):
        return damage
    agreed(ranks, restoration.finish)
    return restoration


def _damage(tier: Tier, found: Sequence[Findings]) -> list[DamagedFile]:
    damage = [each for findings in found for each in findings.damage]
    if errors := [each for findings in found for each in findings.errors]:
        raise CheckpointError("; ".join(errors))
    return tier.confirmed(damage) if damage else []


def agreed(ranks: Ranks, work: Callable[[], Result]) -> Result:
    """The result of what every rank does; an error of one of them is raised on all, so that none waits for it.

    Raises:
        CheckpointError: the first rank's that failed.
    """
    error: CheckpointError | None = None
    try:
        result = work()
    except CheckpointError as raised:
        error = raised
    for rank, told in enumerate(ranks.everyones(error)):
        if told is not None:
            raise told if rank == ranks.rank else type(told)(f"rank {rank}: {told}")
    return result


class StoreTier:
    """The store: files are divided among the ranks, and rank 0 reads what is small."""

    lends = False

    def __init__(self, store: Store, ref: CheckpointRef, ranks: Ranks) -> None:
        self._store = store
        self._folder = folder_of(ref)
        self._ranks = ranks

    def contents(self) -> Contents | list[DamagedFile]:
        seen: Contents | list[DamagedFile] | CheckpointError = []
        if self._ranks.rank == 0:
            try:
                seen = self._look()
            except PermissionError as error:
                seen = CheckpointError(f"{socket.gethostname()} may not read {self._folder}: {error}")
        seen = self._ranks.from_first(seen)
        if isinstance(seen, CheckpointError):
            raise seen
        return seen

    def reach(self, contents: Contents) -> dict[str, Reach]:
        return share_files(contents.files, self._ranks.size)

    def source(
        self,
        contents: Contents,
        reach: Mapping[str, Reach],
        parcels: Mapping[str, Sequence[Parcel]],
    ) -> AbstractContextManager[Source]:
        return closing(StoreSource(self._store, self._folder, contents.files, reach, parcels, self._ranks.rank))

    def confirmed(self, damage: list[DamagedFile]) -> list[DamagedFile]:
        """What only other ranks than rank 0 see is no damage.

        Raises:
            CheckpointError: rank 0 finds everything whole.
        """
        if not self._ranks.is_joint:
            return damage
        found: list[DamagedFile] = []
        if self._ranks.rank == 0:
            found = damaged_files(self._store, self._folder)
        found = self._ranks.from_first(found)
        if not found:
            raise CheckpointError(
                f"ranks do not see the same {self._folder} in {self._store.location}: {damage[0]}; all nodes must "
                "mount the same folder and may read it"
            )
        return found

    def close(self) -> None:
        """Nothing is kept open."""

    def _look(self) -> Contents | list[DamagedFile]:
        """The small files, verified, and whether all others are there with their size.

        Raises:
            PermissionError: they may not be read.
        """
        name = MANIFEST
        small: dict[str, bytes] = {}
        try:
            manifest = load_manifest(self._store, self._folder)
            sizes = self._store.files(self._folder)
            faults = {each: size_damage(record, sizes.get(each)) for each, record in manifest.files.items()}
            for name in (METADATA, STRUCTURE):
                small[name] = b"" if faults[name] else self._store.read(f"{self._folder}/{name}")
                seen, expected = xxhash.xxh3_128_hexdigest(small[name]), manifest.files[name].xxh3
                if not faults[name] and seen != expected:
                    faults[name] = f"its checksum is {seen} instead of {expected}"
        except PermissionError:
            raise
        except (OSError, ValueError, KeyError) as error:
            return [DamagedFile(name, str(error))]
        damage = [DamagedFile(each, why) for each, why in sorted(faults.items()) if why]
        files = {each: record for each, record in manifest.files.items() if each not in small}
        return damage or Contents(small[METADATA], small[STRUCTURE], files)
