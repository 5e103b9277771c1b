# SPDX-License-Identifier: Apache-2.0
"""What other packages may use of the checkpoint library: its errors, values, ports and the catalogue's entrance.

This module and everything that it imports stay free of torch, because the control plane uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from checkpoint.catalogue import Catalogue
    from checkpoint.foreign import ForeignCatalogue


class CheckpointError(Exception):
    """Base of every error that this library raises on purpose; the message names what to do next."""


class StaleAttemptError(CheckpointError):
    """The fence names a newer attempt than ours: this process must not train on."""


class StateMismatchError(CheckpointError):
    """The checkpoint does not fit the state that was handed in; nothing was changed."""


class ResumeGoneError(CheckpointError):
    """The checkpoint to resume from is gone with all older ones, while younger ones are left."""


class StoreError(CheckpointError):
    """The store cannot be used: unknown scheme, no rights, or a file that is not what it should be."""


@dataclass(frozen=True, slots=True, order=True)
class CheckpointRef:
    """Names one checkpoint: the step after which it was taken and the attempt that took it."""

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"step {self.step} of attempt {self.attempt}"


@dataclass(frozen=True, slots=True)
class CommittedCheckpoint:
    """One visible checkpoint as its manifest describes it.

    `at` is the Unix time of the commit; `position` the index of the next batch, None when the run did not tell;
    `skipped` ranges of batch indices, first and last included; `healthy` the loss health at the save, None when nobody
    judged it; `uri` the checkpoint's own folder.
    """

    step: int
    attempt: int
    at: float
    position: int | None
    skipped: tuple[tuple[int, int], ...]
    healthy: bool | None
    bytes: int
    world_size: int
    uri: str

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(self.step, self.attempt)


class EntryState(str, Enum):
    """What a folder in the store is."""

    VISIBLE = "visible"
    """Committed, and part of the present lineage."""
    INVISIBLE = "invisible"
    """Committed by an attempt that the fence has cut off, after the step that its successor resumed from."""
    INCOMPLETE = "incomplete"
    """Being written, or left half-written by an attempt that died."""
    SET_ASIDE = "set aside"
    """Found damaged and renamed; kept for a person to look at."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One folder of the store.

    `is_whole` says that every file of the manifest is there with its size; only `Catalogue.verify` reads the bytes.
    `committed` is None when there is no manifest that can be read.
    """

    folder: str
    ref: CheckpointRef | None
    state: EntryState
    is_whole: bool
    bytes: int
    committed: CommittedCheckpoint | None


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """One file of a checkpoint that is not what its manifest says."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


@dataclass(frozen=True, slots=True)
class Fence:
    """The newest attempt, and which checkpoints of older ones stay visible.

    A manifest of an attempt that is neither this one nor in `sealed` is invisible for ever. `resume_step` and
    `resume_attempt` name what the attempt started from, both None when it started from nothing. `controller` says
    who wrote the fence. `unhealthy` names checkpoints whose loss turned out to be bad after they were committed.
    """

    attempt: int
    resume_step: int | None = None
    resume_attempt: int | None = None
    sealed: tuple[CheckpointRef, ...] = ()
    controller: str = ""
    unhealthy: tuple[CheckpointRef, ...] = ()


class RunNotes(Protocol):
    """What the checkpointer takes from the training client; `supervisor.training` satisfies it."""

    @property
    def position(self) -> int:
        """Index of the next batch."""

    @property
    def skipped(self) -> Sequence[tuple[int, int]]:
        """Ranges of batch indices that are left out, first and last included."""

    @property
    def loss_healthy(self) -> bool | None:
        """Whether the loss is free of a spike and of NaN now; None when nobody judges it."""

    @property
    def should_stop(self) -> bool:
        """Whether the run is to save and stop after this step; all ranks are told the same step."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Mark a known pause, so that it is not taken for a hang."""


class Sink(Protocol):
    """A file that is being written."""

    def write(self, payload: bytes | memoryview) -> int: ...


class Store(Protocol):
    """Where checkpoints lie: folders of files under one location.

    Names are relative, `folder/file`. A write that has returned is durable, the entry in its folder included.
    Failures are OSError; a missing file is FileNotFoundError.
    """

    @property
    def location(self) -> str: ...

    def folders(self) -> list[str]:
        """Names of the folders, sorted."""

    def files(self, folder: str) -> dict[str, int]:
        """Sizes in bytes by file name; empty when there is no such folder."""

    def read(self, name: str) -> bytes: ...

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file for reading; the stream can seek."""

    def write(self, name: str, payload: bytes) -> None:
        """Put a whole file in place atomically: a reader sees the old one or the new one."""

    def create(self, name: str) -> AbstractContextManager[Sink]:
        """Write a file as a stream; it is durable when the block ends without an error."""

    def put_buffer(self, name: str, payload: memoryview, length: int) -> None:
        """Write the first `length` bytes of page-aligned memory as a file, as fast as the store takes them.

        `payload` reaches to the end of the last page, for stores that write whole pages.
        """

    def make_folder(self, folder: str) -> None:
        """Make a folder unless it is there."""

    def rename(self, old: str, new: str) -> None:
        """Rename a folder atomically and durably; FileExistsError when `new` is there and not empty."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and what is in it; none there is not an error."""


def open_catalogue(uri: str) -> Catalogue:
    """Open the catalogue of the checkpoints under a path or URI; the folder need not exist yet.

    Raises:
        StoreError: the scheme is not one that works.
    """
    from checkpoint.catalogue import Catalogue
    from checkpoint.stores import open_store

    return Catalogue(open_store(uri))


def open_foreign(uri: str) -> ForeignCatalogue:
    """Open what other programs have saved under a path or URI; its `format()` says who, None when nobody has.

    Raises:
        StoreError: the scheme is not one that works.
    """
    return open_catalogue(uri).foreign()
