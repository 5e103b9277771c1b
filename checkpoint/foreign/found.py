# SPDX-License-Identifier: Apache-2.0
"""What is told of a foreign checkpoint, and what each format's reader must be able to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from checkpoint.api import DamagedFile, Store
from checkpoint.foreign.folder import Folder


class Format(str, Enum):
    """Who wrote a checkpoint."""

    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"
    HUGGING_FACE = "hugging face"
    TORCHTITAN = "torchtitan"
    DCP = "dcp"
    """Plain `torch.distributed.checkpoint`, under whatever name."""


@dataclass(frozen=True, slots=True)
class ForeignCheckpoint:
    """One step's folder.

    `step` is None where the name has no number; `faults` names what is missing or cut short, empty when the checkpoint
    is whole as far as its format tells; `bytes` is the size of all its files; `uri` the folder itself.
    """

    format: Format
    step: int | None
    folder: str
    uri: str
    bytes: int
    faults: tuple[DamagedFile, ...]

    @property
    def is_whole(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class Reader:
    """How one format is read.

    Attributes:
        steps: step (None: not told) by name of each folder of the store that is a checkpoint of this format; "" is
            the store itself.
        faults: what a listing and the small files of such a folder show to be missing or too short.
        newest: the step of the newest save that ended, where a file of the store tells it. A later one was cut off:
            it is half-written, or of a history that the run has gone back from. None: there is no such file.
    """

    format: Format
    steps: Callable[[Store], Mapping[str, int | None]]
    faults: Callable[[Folder], list[DamagedFile]]
    newest: Callable[[Store], int | None] = lambda _store: None


def last_number(name: str) -> int | None:
    """The last number in a name, by which most programs name the step."""
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


def missing(name: str) -> DamagedFile:
    return DamagedFile(name, "is missing")


def read_text(store: Store, name: str) -> str | None:
    """A small file's text without the space around it; None when there is none."""
    try:
        return store.read(name).decode(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
