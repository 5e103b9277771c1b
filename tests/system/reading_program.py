# SPDX-License-Identifier: Apache-2.0
"""Ranks that restore through a store which counts: `reading_program.py FOLDER [misfit|unreadable]`.

Every rank builds the state of `checkpoint_program`, restores it and writes to `<FOLDER>.read-<rank>.json` how often it
opened each file, how many bytes it read, what it has now, or the error. With `misfit` rank 1's state has another shape;
with `unreadable` rank 1 sees an empty folder in place of the checkpoint.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from checkpoint import Checkpointer
from checkpoint.api import CheckpointError
from checkpoint.stores import PosixStore
from tests.system.checkpoint_program import build, digest


class CountingStore(PosixStore):
    """Counts what is opened and read below the checkpoints' folders."""

    def __init__(self, root: Path, *, is_blind: bool) -> None:
        super().__init__(root)
        self.opened: Counter[str] = Counter()
        self.bytes = 0
        self._is_blind = is_blind

    def open(self, name: str) -> IO[bytes]:
        self.opened[name] += 1
        if self._is_blind:
            raise FileNotFoundError(2, "No such file or directory", name)
        store = self

        class Counted(io.FileIO):
            def readinto(self, buffer: Any, /) -> int:
                got = super().readinto(buffer)
                store.bytes += got or 0
                return got or 0

        return io.BufferedReader(Counted(self._root / name))

    def read(self, name: str) -> bytes:
        if "/" in name:
            self.opened[name] += 1
        return super().read(name)


def main() -> None:
    folder = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = build("bare")
    is_odd = rank == 1
    if "misfit" in sys.argv and is_odd:
        state["average"] = torch.zeros(99)
    store = CountingStore(Path(folder), is_blind="unreadable" in sys.argv and is_odd)
    report: dict[str, Any] = {}
    with Checkpointer(folder, store=store) as checkpointer:
        try:
            report["step"] = checkpointer.restore(state)
        except CheckpointError as error:
            report["error"] = f"{type(error).__name__}: {error}"
    report |= {"opened": store.opened, "bytes": store.bytes, "digest": digest(state)}
    Path(f"{folder}.read-{rank}.json").write_text(json.dumps(report))
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    os._exit(0)
