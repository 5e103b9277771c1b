# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a checkpoint, each by one rank, verifies every byte, and passes on what others need.

    files   one by one, in the same order on every rank
    reader  a thread reads and hashes ahead -> parcel -> next rank of the chain
    others  parcel from the rank before -> next rank

What was read counts only when all files have turned out whole, which is known at the end.
"""

from __future__ import annotations

import errno
import io
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Protocol, cast

import xxhash

from checkpoint.api import DamagedFile, Store
from checkpoint.manifest import FileRecord
from checkpoint.passing import Extent, Parcel, Reach, chain_of
from checkpoint.ranks import Ranks

_BLOCK_BYTES = 16 << 20
_AHEAD = 4
"""Parcels that a reader may be ahead of the chain, each of 32 MiB or a single larger tensor."""

Take = Callable[[str, Extent, memoryview, bool], None]
"""Takes an extent of a file. Its bytes are there until it returns; with True they stay as long as the tier is open."""


class Source(Protocol):
    """The files that this rank can read. One that cannot be read gives zeros, so that no rank waits for it in vain.

    `lasts` says that what it gives stays in place as long as the tier is open.
    """

    lasts: bool

    def read(self, name: str, parcels: Sequence[Parcel]) -> Iterator[memoryview]:
        """The bytes of these parcels of a file: all that any rank needs if this one is the file's reader."""

    def findings(self) -> Findings:
        """What is wrong with the files that this rank is the reader of, all of whose bytes it has looked at."""


class Findings:
    """What readers have found: `damage` is about the bytes, `errors` say why nobody could tell."""

    def __init__(self) -> None:
        self.damage: list[DamagedFile] = []
        self.errors: list[str] = []


def exchange(
    ranks: Ranks,
    source: Source,
    reach: Mapping[str, Reach],
    parcels: Mapping[str, Sequence[Parcel]],
    take: Take,
) -> None:
    """Take part in the reading of all files. Every rank calls it with the same `reach` and `parcels`."""
    for name in sorted(reach):
        _exchange(ranks, source, name, reach[name], parcels[name], take)


def _exchange(ranks: Ranks, source: Source, name: str, reach: Reach, parcels: Sequence[Parcel], take: Take) -> None:
    me = ranks.rank
    has_it = me in reach.ranks
    mine = [each for each in parcels if me in each.ranks or me == reach.reader]
    payloads = source.read(name, mine) if has_it and (mine or me == reach.reader) else iter(())
    for parcel in mine:
        chain = chain_of(parcel, reach)
        place = chain.index(me) if me in chain else len(chain)
        if has_it:
            payload = next(payloads)
        else:
            payload = memoryview(bytearray(parcel.length))
            ranks.receive(payload, chain[place - 1])
        begun = ranks.send(payload, chain[place + 1]) if place + 1 < len(chain) else []
        if me in parcel.ranks:
            for extent in parcel.extents:
                start = extent.start - parcel.start
                take(name, extent, payload[start : start + extent.length], has_it and source.lasts)
        for work in begun:
            work.wait()


class StoreSource:
    """Reads this rank's files of a store ahead, by a thread, in the order in which they are wanted."""

    lasts = False

    def __init__(
        self,
        store: Store,
        folder: str,
        files: Mapping[str, FileRecord],
        reach: Mapping[str, Reach],
        parcels: Mapping[str, Sequence[Parcel]],
        rank: int,
    ) -> None:
        self._store = store
        self._folder = folder
        self._files = files
        self._parcels = parcels
        self._found = Findings()
        self._own = [name for name in sorted(reach) if reach[name].reader == rank]
        self._ahead: queue.Queue[memoryview] = queue.Queue(_AHEAD)
        self._is_abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-read", daemon=True)
        self._thread.start()

    def read(self, name: str, parcels: Sequence[Parcel]) -> Iterator[memoryview]:
        assert name in self._own
        for _ in parcels:
            yield self._ahead.get()

    def findings(self) -> Findings:
        self._thread.join()
        return self._found

    def close(self) -> None:
        """End the thread, also when not everything has been taken."""
        self._is_abandoned.set()
        self._thread.join()

    def _run(self) -> None:
        for name in self._own:
            for payload in self._read(name):
                if not self._put(payload):
                    return

    def _put(self, payload: memoryview) -> bool:
        while not self._is_abandoned.is_set():
            try:
                self._ahead.put(payload, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def _read(self, name: str) -> Iterator[memoryview]:
        given = 0
        try:
            for payload in self._read_whole(name):
                given += 1
                yield payload
        except PermissionError as error:
            self._found.errors.append(f"{self._folder}/{name} may not be read: {error}")
        except OSError as error:
            self._found.damage.append(DamagedFile(name, f"cannot be read: {error}"))
        for parcel in self._parcels[name][given:]:
            yield memoryview(bytearray(parcel.length))

    def _read_whole(self, name: str) -> Iterator[memoryview]:
        record, digest, at = self._files[name], xxhash.xxh3_128(), 0
        with self._store.open(f"{self._folder}/{name}") as stream:
            for parcel in self._parcels[name]:
                _pass_over(stream, parcel.start - at, digest)
                payload = memoryview(bytearray(parcel.length))
                _fill(stream, payload, digest)
                yield payload
                at = parcel.start + parcel.length
            _pass_over(stream, record.bytes - at, digest)
        if digest.hexdigest() != record.xxh3:
            why = f"its checksum is {digest.hexdigest()} instead of {record.xxh3}"
            self._found.damage.append(DamagedFile(name, why))


def _pass_over(stream: IO[bytes], length: int, digest: xxhash.xxh3_128) -> None:
    while length:
        block = stream.read(min(length, _BLOCK_BYTES))
        if not block:
            raise OSError(errno.EIO, "it ends too early")
        digest.update(block)
        length -= len(block)


def _fill(stream: IO[bytes], payload: memoryview, digest: xxhash.xxh3_128) -> None:
    """Read into memory, in blocks that are still in the processor's cache when they are hashed."""
    # Every store's stream can do it; typing's IO does not say so.
    readable = cast(io.BufferedIOBase, stream)
    at = 0
    while at < len(payload):
        got = readable.readinto(payload[at : at + _BLOCK_BYTES])
        if not got:
            raise OSError(errno.EIO, "it ends too early")
        digest.update(payload[at : at + got])
        at += got
