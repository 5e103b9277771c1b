# SPDX-License-Identifier: Apache-2.0
"""How long a restore takes from the node's memory, from a peer node's memory, and from disk; 1 GiB in 300 tensors.

Two nodes of one rank each are two folders for memory on this machine, and one process group. Each launch restores into
a new process' fresh model and optimizer. "disk" has what memory held given back first and the files' pages dropped;
for "peer" the second node's writer and memory are taken away, so that its half comes over the network. The state is
replicated, so each rank needs all of it. The bar: from node memory at least 5 times faster than from disk.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.measuring import ROOT, Bar, conclude, median, options, place, show, spread
from checkpoint import Checkpointer
from checkpoint.held import HeldImage, held_here

_PARAMETERS, _FLOATS = 100, 894_000
_NODES = 2
_WARM = 1


def state_of() -> dict[str, Any]:
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.rand(_FLOATS)) for _ in range(_PARAMETERS)])
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def train(state: dict[str, Any]) -> None:
    """A step, after which the optimizer has moments."""
    for each in state["model"].parameters():
        each.grad = torch.zeros_like(each)
    state["optimizer"].step()


def be_rank(store: str, report: Path) -> None:
    """Restore, report how long that took, save, and wait to be killed."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    state = state_of()
    with Checkpointer(store, every=1, keep=2, replicas=True) as checkpointer:
        dist.barrier()
        began = time.monotonic()
        step = checkpointer.restore(state)
        dist.barrier()
        Path(f"{report}.{rank}").write_text(json.dumps({"seconds": time.monotonic() - began, "step": step}))
        if step is None:
            train(state)
        checkpointer.save((step or 0) + 1, state, wait=True)
        Path(f"{report}.{rank}.ready").touch()
        signal.pause()


class Nodes:
    """The two nodes, of which ranks and writers come and go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.store = folder / "store"
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._launches = 0

    def memory(self, node: int) -> Path:
        return self._folder / f"memory-{node}"

    def launch(self) -> float:
        """Start a launch, and wait until it has restored and saved; the seconds of the slower rank's restore."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._launches += 1
        report = self._folder / f"report-{self._launches}"
        for rank in range(_NODES):
            self.memory(rank).mkdir(exist_ok=True)
            environment = {
                **os.environ,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(_NODES),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "OMP_NUM_THREADS": "1",
                "CHECKPOINT_MEMORY": str(self.memory(rank)),
            }
            command = [sys.executable, "-m", "benchmarks.checkpoint_restore", "--rank-of", str(self.store)]
            command += ["--report", str(report)]
            self._ranks.append(subprocess.Popen(command, env=environment, cwd=ROOT))
        self._await(lambda: all(Path(f"{report}.{rank}.ready").exists() for rank in range(_NODES)))
        return max(float(json.loads(Path(f"{report}.{rank}").read_text())["seconds"]) for rank in range(_NODES))

    def await_replicas(self, step: int) -> None:
        def have_come() -> bool:
            held = [each for node in range(_NODES) for each in self.held(node) if each.ref.step == step]
            return sum(each.is_replica for each in held) == _NODES

        self._await(have_come)

    def held(self, node: int) -> list[HeldImage]:
        return held_here(self.memory(node) / f"checkpoint-{os.getuid()}", str(self.store))

    def kill_ranks(self) -> None:
        for each in self._ranks:
            each.kill()
            each.wait()
        self._ranks.clear()

    def lose_memory(self, node: int) -> None:
        """Take a node's writer and memory away."""
        for each in Path("/proc").iterdir():
            if each.name.isdecimal():
                with suppress(OSError):
                    is_writer = b"checkpoint\0writer\0" in (each / "cmdline").read_bytes()
                    is_its = f"CHECKPOINT_MEMORY={self.memory(node)}\0".encode() in (each / "environ").read_bytes()
                    if is_writer and is_its:
                        os.kill(int(each.name), signal.SIGKILL)
        shutil.rmtree(self.memory(node), ignore_errors=True)

    def drop_pages(self) -> None:
        """Have the kernel forget what it has cached of the store's files."""
        os.sync()
        for path in self.store.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

    def close(self) -> None:
        self.kill_ranks()
        for node in range(_NODES):
            self.lose_memory(node)

    def _await(self, is_so: Callable[[], bool]) -> None:
        ends = time.monotonic() + 300
        while not is_so():
            if time.monotonic() > ends or any(each.poll() is not None for each in self._ranks):
                raise RuntimeError("a rank ended, or was too slow; see above")
            time.sleep(0.05)


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each restore by its tier; each launch saves again what the next one restores."""
    nodes = Nodes(folder)
    taken: dict[str, list[float]] = {"node memory": [], "peer memory": [], "disk": []}
    try:
        nodes.launch()
        step = 1
        for _ in range(rounds + _WARM):
            for tier, seconds in taken.items():
                nodes.await_replicas(step)
                nodes.kill_ranks()
                if tier != "node memory":
                    nodes.lose_memory(1)
                if tier == "disk":
                    nodes.lose_memory(0)
                    nodes.drop_pages()
                seconds.append(nodes.launch())
                step += 1
    finally:
        nodes.close()
    return {tier: seconds[_WARM:] for tier, seconds in taken.items()}


def main() -> int:
    parser = options(__doc__, "checkpoint_restore")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where the disk is that is measured")
    parser.add_argument("--rank-of", help="be a rank that restores from this store")
    parser.add_argument("--report", type=Path)
    chosen = parser.parse_args()
    if chosen.rank_of:
        be_rank(chosen.rank_of, chosen.report)
        return 0
    began = place()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        taken = measure(Path(folder), chosen.rounds)
    show(
        ["restore of 1 GiB, s", "median", "least", "most"],
        [[tier, median(each), min(each), max(each)] for tier, each in taken.items()],
    )
    bars = [Bar("node memory over disk", median(taken["node memory"]) / median(taken["disk"]), 0.2, "times")]
    found = {"seconds": {tier: spread(each) for tier, each in taken.items()}}
    return conclude(began, chosen.output, {"rounds": chosen.rounds}, found, bars)


if __name__ == "__main__":
    sys.exit(main())
