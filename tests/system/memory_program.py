# SPDX-License-Identifier: Apache-2.0
"""A rank that saves and tells how much it takes: `memory_program.py FOLDER BYTES TENSORS [linger]`.

It appends a JSON line for each moment to `<FOLDER>.rank-<r>.jsonl`; rank 0 also tells of the writer. With `linger` it
says `lingers` when it has saved, and waits to be killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from checkpoint import Checkpointer
from checkpoint.slab import memory_folder

_SAVES = 4
_LOOK_S = 0.02


def takes(pid: int) -> dict[str, int]:
    """Bytes of a process' own memory and its share of what lies in /dev/shm, and how many descriptors it has open."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        found[name.rstrip(":")] = int(size) << 10
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {"anonymous": found["Pss_Anon"], "shared": found["Pss_Shmem"], "descriptors": descriptors}


def writer_of(folder: Path) -> int | None:
    """The process that has the writer's lock open; a rank has slabs open there, and no lock."""
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                names = [os.readlink(fd) for fd in (each / "fd").iterdir()]  # noqa: PTH115 - sockets are no paths
                if any(name.startswith(f"{folder}/") and name.endswith(".lock") for name in names):
                    return int(each.name)
    return None


class Watch(threading.Thread):
    """Keeps the most that the writer has taken."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._is_over = threading.Event()
        self.most: dict[str, int] = {}

    def run(self) -> None:
        pid = None
        while not self._is_over.wait(_LOOK_S):
            pid = pid or writer_of(self._folder)
            if pid:
                with suppress(OSError):
                    self.most = {name: max(now, self.most.get(name, 0)) for name, now in takes(pid).items()}

    def end(self) -> dict[str, int]:
        self._is_over.set()
        self.join()
        return self.most


def main() -> None:
    folder, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = {"tensors": [torch.full((size // 4 // count,), 1.0) for _ in range(count)]}
    memory = memory_folder(os.environ)

    def tell(moment: str, **more: object) -> None:
        slabs = sum(path.stat().st_blocks * 512 for path in memory.glob("*.slab")) if memory.is_dir() else 0
        line = {"moment": moment, "slabs": slabs, **takes(os.getpid()), **more}
        with Path(f"{folder}.rank-{rank}.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    watch = Watch(memory)
    if rank == 0:
        watch.start()
    tell("before")
    checkpointer = Checkpointer(folder, keep=1)
    checkpointer.restore(state)
    dist.barrier()
    tell("prepared")
    for step in range(1, _SAVES + 1):
        for each in state["tensors"]:
            each.fill_(step)
        checkpointer.save(step, state, wait=True)
        dist.barrier()
    tell("saved", writer=watch.end() if rank == 0 else {})
    if "linger" in sys.argv:
        print("lingers", flush=True)
        time.sleep(600)
    checkpointer.close()
    dist.barrier()
    tell("closed")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
