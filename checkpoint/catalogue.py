# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of one store: which there are, which count, which are whole.

Nothing is cached: each call reads the store, since other processes commit and prune at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from checkpoint.api import (
    CatalogueEntry,
    CheckpointError,
    CheckpointRef,
    CommittedCheckpoint,
    DamagedFile,
    EntryState,
    Fence,
    ResumeGoneError,
    Store,
    StoreError,
)
from checkpoint.foreign import ForeignCatalogue
from checkpoint.lineage import (
    DELETED_PREFIX,
    PARTIAL_SUFFIX,
    SET_ASIDE_PREFIX,
    expendable,
    folder_of,
    is_committed_name,
    is_visible,
    ref_of,
)
from checkpoint.manifest import FENCE, MANIFEST, damaged_files, encode_fence, load_fence, load_manifest
from checkpoint.stores import open_store

_log = logging.getLogger(__name__)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _told_as_store_error(
    method: Callable[Concatenate[Catalogue, Parameters], Result],
) -> Callable[Concatenate[Catalogue, Parameters], Result]:
    """Let callers handle one kind of error: an OSError of the store comes out as a StoreError."""

    @wraps(method)
    def told(self: Catalogue, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise StoreError(
                f"the checkpoints in {self.location} cannot be used: {error}; see that the folder is there and that "
                "this user may read and write it"
            ) from error

    return told


class Catalogue:
    """What lies in one store. Every method raises StoreError when the store fails or its fence cannot be read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def location(self) -> str:
        return self._store.location

    def foreign(self) -> ForeignCatalogue:
        """The checkpoints of other programs in the same store."""
        return ForeignCatalogue(self._store, open_store)

    @_told_as_store_error
    def visible_refs(self) -> list[CheckpointRef]:
        """Every visible checkpoint by its folder's name, oldest first, its manifest unread and maybe damaged."""
        fence = self.read_fence()
        return sorted(ref for ref in self._committed_refs() if is_visible(ref, fence))

    @_told_as_store_error
    def committed(self) -> list[CommittedCheckpoint]:
        """The visible checkpoints, newest last; one whose manifest is damaged is left out and logged.

        What the fence says of a checkpoint's health counts more than its manifest, which was written before.
        """
        fence = self.read_fence()
        known = [each for ref in self.visible_refs() if (each := self._committed(ref))]
        unhealthy = set(fence.unhealthy) if fence else set()
        return [replace(each, healthy=False) if each.ref in unhealthy else each for each in known]

    @_told_as_store_error
    def all_entries(self) -> list[CatalogueEntry]:
        """Every checkpoint folder, the invisible, half-written and set-aside ones too, by name."""
        fence = self.read_fence()
        return [
            self._entry(folder, fence)
            for folder in self._store.folders()
            if ref_of(folder) is not None and not folder.startswith(DELETED_PREFIX)
        ]

    def best(
        self, *, before_step: int | None = None, before_position: int | None = None, healthy: bool = True
    ) -> CommittedCheckpoint | None:
        """The newest visible checkpoint that fits, or None.

        Args:
            before_step: only those of a smaller step.
            before_position: only those that had not yet trained the batch of this index.
            healthy: leave out those whose loss was known to be unhealthy; one that nobody judged passes.
        """
        for each in reversed(self.committed()):
            if before_step is not None and each.step >= before_step:
                continue
            if before_position is not None and (each.position is None or each.position > before_position):
                continue
            if healthy and each.healthy is False:
                continue
            return each
        return None

    def best_whole(
        self, *, before_step: int | None = None, before_position: int | None = None, healthy: bool = True
    ) -> CommittedCheckpoint | None:
        """As `best`, with every byte read; a damaged one is set aside, aloud, and the next older one is tried."""
        while True:
            found = self.best(before_step=before_step, before_position=before_position, healthy=healthy)
            damage = self.verify(found.ref) if found else []
            if found is None or not damage:
                return found
            self.set_aside(found.ref, "; ".join(str(each) for each in damage))

    @_told_as_store_error
    def verify(self, ref: CheckpointRef, *, told: Callable[[int], object] | None = None) -> list[DamagedFile]:
        """Read every byte of a committed checkpoint and name what is damaged; empty when it is whole.

        `told` is called with the number of bytes of each block that was read.
        """
        return damaged_files(self._store, folder_of(ref), told=told)

    @_told_as_store_error
    def set_aside(self, ref: CheckpointRef, why: str) -> str:
        """Rename a damaged checkpoint so that it no longer counts; returns its new folder's name."""
        taken = set(self._store.folders())
        base = SET_ASIDE_PREFIX + folder_of(ref)
        name = next(each for n in range(len(taken) + 1) if (each := f"{base}-{n}" if n else base) not in taken)
        self._store.rename(folder_of(ref), name)
        _log.warning("checkpoint set aside step=%d attempt=%d folder=%s why=%s", *_pair(ref), name, why)
        return name

    @_told_as_store_error
    def read_fence(self) -> Fence | None:
        """The fence, or None when no attempt has opened this store."""
        return load_fence(self._store)

    @_told_as_store_error
    def write_fence(self, fence: Fence) -> None:
        """Replace the fence, atomically and durably.

        Raises:
            ResumeGoneError: the fence names a checkpoint to resume from that is gone with all older ones. It would hide
                those that are left for ever, and leave nothing to resume from.
        """
        left = self.visible_refs()
        if fence.resume_step is not None and left and not fence.sealed:
            steps = ", ".join(str(ref.step) for ref in left)
            raise ResumeGoneError(
                f"there is no checkpoint of step {fence.resume_step} or older in {self.location} any more; left are "
                f"those of steps {steps}"
            )
        self._store.make_folder("")
        self._store.write(FENCE, encode_fence(fence))

    @_told_as_store_error
    def mark_unhealthy(self, refs: Iterable[CheckpointRef]) -> None:
        """Note in the fence that these checkpoints hold a spoiled loss, which was found after they were committed.

        Raises:
            CheckpointError: no attempt has opened this store, so there is no fence.
        """
        fence = self.read_fence()
        if fence is None:
            raise CheckpointError(f"{self.location} has no fence to note it in; no attempt has saved there yet")
        unhealthy = tuple(sorted({*fence.unhealthy, *refs}))
        if unhealthy != fence.unhealthy:
            self._store.write(FENCE, encode_fence(replace(fence, unhealthy=unhealthy)))

    @_told_as_store_error
    def newest_attempt(self) -> int:
        """The largest attempt that the fence or any folder knows; 0 when there is none."""
        fence = self.read_fence()
        known = [ref.attempt for folder in self._store.folders() if (ref := ref_of(folder))]
        return max([fence.attempt if fence else 0, *known])

    @_told_as_store_error
    def cut_off(self) -> list[CheckpointRef]:
        """Committed checkpoints of attempts older than the fence's that no later attempt builds on."""
        fence = self.read_fence()
        if fence is None:
            return []
        return [ref for ref in self._committed_refs() if ref.attempt < fence.attempt and not is_visible(ref, fence)]

    def prune(self, *, keep: int, keep_every: int | None = None) -> list[CommittedCheckpoint]:
        """Delete the visible checkpoints that retention does not keep (`lineage.expendable`); returns them."""
        removed = expendable(self.committed(), keep=keep, keep_every=keep_every)
        for each in removed:
            self.delete(each.ref)
        return removed

    @_told_as_store_error
    def delete(self, ref: CheckpointRef) -> None:
        """Delete one checkpoint; renamed first, so that a half-deleted one never looks like a damaged one."""
        doomed = DELETED_PREFIX + folder_of(ref)
        self._store.remove(doomed)
        self._store.rename(folder_of(ref), doomed)
        self._store.remove(doomed)

    @_told_as_store_error
    def sweep(self, *, before_attempt: int) -> list[str]:
        """Remove what attempts before this one left half-written or half-deleted; returns the folders' names."""
        swept = []
        for folder in self._store.folders():
            ref = ref_of(folder)
            is_stale = folder.endswith(PARTIAL_SUFFIX) and ref is not None and ref.attempt < before_attempt
            if is_stale or folder.startswith(DELETED_PREFIX):
                self._store.remove(folder)
                swept.append(folder)
        return swept

    def _committed(self, ref: CheckpointRef) -> CommittedCheckpoint | None:
        try:
            return load_manifest(self._store, folder_of(ref)).committed(f"{self._store.location}/{folder_of(ref)}")
        except FileNotFoundError:
            return None
        except ValueError as error:
            _log.warning("checkpoint left out: damaged manifest step=%d attempt=%d why=%s", *_pair(ref), error)
            return None

    def _committed_refs(self) -> list[CheckpointRef]:
        names = filter(is_committed_name, self._store.folders())
        return sorted(ref for name in names if (ref := ref_of(name)))

    def _entry(self, folder: str, fence: Fence | None) -> CatalogueEntry:
        ref = ref_of(folder)
        sizes = self._store.files(folder)
        try:
            manifest = load_manifest(self._store, folder)
        except (FileNotFoundError, ValueError):
            manifest = None
        is_whole = manifest is not None and all(sizes.get(n) == each.bytes for n, each in manifest.files.items())
        if folder.startswith(SET_ASIDE_PREFIX):
            state = EntryState.SET_ASIDE
        elif folder.endswith(PARTIAL_SUFFIX) or MANIFEST not in sizes:
            state = EntryState.INCOMPLETE
        else:
            state = EntryState.VISIBLE if ref and is_visible(ref, fence) else EntryState.INVISIBLE
        committed = manifest.committed(f"{self._store.location}/{folder}") if manifest else None
        if committed and fence and ref in fence.unhealthy:
            committed = replace(committed, healthy=False)
        return CatalogueEntry(
            folder=folder,
            ref=ref,
            state=state,
            is_whole=is_whole,
            bytes=sum(sizes.values()),
            committed=committed,
        )


def _pair(ref: CheckpointRef) -> tuple[int, int]:
    return ref.step, ref.attempt
