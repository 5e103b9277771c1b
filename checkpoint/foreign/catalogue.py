# SPDX-License-Identifier: Apache-2.0
"""The foreign checkpoints of one store. Nothing is cached: other processes write and delete at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from checkpoint.api import DamagedFile, Store
from checkpoint.foreign.dcp import PLAIN, TORCHTITAN
from checkpoint.foreign.deepspeed import DEEPSPEED
from checkpoint.foreign.ends import cut_short, why_cut_short
from checkpoint.foreign.folder import Folder
from checkpoint.foreign.found import ForeignCheckpoint, Format, Reader
from checkpoint.foreign.hugging_face import HUGGING_FACE
from checkpoint.foreign.megatron import MEGATRON

READERS = (MEGATRON, DEEPSPEED, HUGGING_FACE, TORCHTITAN, PLAIN)


class ForeignCatalogue:
    """What lies in one store. Methods raise OSError when the store fails."""

    def __init__(self, store: Store, open_store: Callable[[str], Store]) -> None:
        self._store = store
        self._open_store = open_store

    @property
    def location(self) -> str:
        return self._store.location

    def format(self) -> Format | None:
        """The format of the newest checkpoint; None when there is no foreign one."""
        newest = next(self._newest_first(), None)
        return None if newest is None else newest[0].format

    def entries(self) -> list[ForeignCheckpoint]:
        """Every checkpoint, oldest first, judged by listings and small files alone."""
        return [self._entry(*each, thorough=False) for each in reversed(list(self._newest_first()))]

    def verified(self, folder: str) -> ForeignCheckpoint | None:
        """One checkpoint, with the ends of its files read too; None when there is no such folder."""
        found = next((each for each in self._newest_first() if each[2] == folder), None)
        return None if found is None else self._entry(*found, thorough=True)

    def is_file_whole(self, name: str) -> bool:
        """Whether a single file in this folder is not cut short, as far as its kind tells."""
        return not why_cut_short(Folder(self._store, "", self._open_store), name)

    def best(self, *, before_step: int | None = None) -> ForeignCheckpoint | None:
        """The newest checkpoint that is whole as far as its format tells, of a smaller step than `before_step`."""
        return next(self.whole(before_step=before_step), None)

    def whole(self, *, before_step: int | None = None) -> Iterator[ForeignCheckpoint]:
        """The whole checkpoints, newest first; each is looked at only when it is asked for."""
        for reader, step, folder, newest in self._newest_first():
            if before_step is not None and (step is None or step >= before_step):
                continue
            entry = self._entry(reader, step, folder, newest, thorough=True)
            if entry.is_whole:
                yield entry

    def _newest_first(self) -> Iterator[tuple[Reader, int | None, str, int | None]]:
        found = [
            (reader, step, folder, newest)
            for reader in READERS
            if (steps := reader.steps(self._store))
            for newest in (reader.newest(self._store),)
            for folder, step in steps.items()
        ]
        found.sort(key=lambda each: -1 if each[1] is None else each[1], reverse=True)
        return iter(found)

    def _entry(
        self, reader: Reader, step: int | None, name: str, newest: int | None, *, thorough: bool
    ) -> ForeignCheckpoint:
        folder = Folder(self._store, name, self._open_store)
        faults = _faults(reader, folder, thorough=thorough)
        if newest is not None and step is not None and step > newest:
            told = f"the newest save that ended is of step {newest}" if newest >= 0 else "no save has ended yet"
            faults = [DamagedFile(name, told), *faults]
        return ForeignCheckpoint(
            format=reader.format,
            step=step,
            folder=name,
            uri=folder.uri,
            bytes=sum(folder.all_files().values()) if name else sum(folder.files.values()),
            faults=tuple(faults),
        )


def _faults(reader: Reader, folder: Folder, *, thorough: bool) -> list[DamagedFile]:
    """A file that goes away while it is looked at makes the checkpoint a partial one, and nothing worse."""
    try:
        found = reader.faults(folder)
        return found if found or not thorough else cut_short(folder)
    except FileNotFoundError as error:
        return [DamagedFile(folder.name, f"is being deleted: {error}")]
