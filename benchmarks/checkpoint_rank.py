# SPDX-License-Identifier: Apache-2.0
"""One rank of `benchmarks.checkpoint_engine`: the same training step under every way to save, in turns, in one process.

A step is a few matrix products and a small all-reduce, which also tells all ranks when rank 0 sees
a save as committed. A save's window goes from the call to that step; what it costs is its length less its steps'
length without a save, which is measured right before it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from benchmarks.flash_checkpoint import FlashCheckpoint
from checkpoint import Checkpointer

MEMCPY, OURS = "memcpy, one thread", "ours"
TORCH, DLROVER, NOBODY = "torch", "DLRover", "nobody"
WIDTH = 512
QUIET_STEPS = 12
SETTLE_S = 10.0


class Way(Protocol):
    """One way to save; `save` returns how to ask whether it is committed."""

    def save(self, step: int) -> Callable[[], bool]: ...

    def close(self) -> None: ...


class Ours:
    """This library."""

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self._folder = folder / "ours"
        self._state = state
        self.checkpointer = Checkpointer(self._folder, every=1, keep=1)
        self.checkpointer.restore(state)

    def save(self, step: int) -> Callable[[], bool]:
        self.checkpointer.save(step, self._state)
        final = self._folder / f"step-{step:012d}-a1"
        return final.exists

    def close(self) -> None:
        self.checkpointer.close()


class Copied:
    """A plain copy into memory that is there, by one thread: what a stall cannot well be below."""

    def __init__(self, _folder: Path, state: dict[str, Any]) -> None:
        self._sources = [each.to_local() for each in state["tensors"].values()]
        self._targets = [torch.zeros_like(each) for each in self._sources]

    def save(self, _step: int) -> Callable[[], bool]:
        for target, source in zip(self._targets, self._sources, strict=True):
            target.copy_(source)
        return lambda: True

    def close(self) -> None:
        self._targets.clear()


class Synchronous:
    """`dcp.save`."""

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self._folder, self._state = folder / "sync", state

    def save(self, step: int) -> Callable[[], bool]:
        save(self._state, checkpoint_id=self._folder / str(step))
        return lambda: True

    def close(self) -> None:
        """Nothing is kept."""


class Asynchronous:
    """`dcp.async_save` with a stager that keeps its buffers, and a process group of its own."""

    def __init__(self, folder: Path, state: dict[str, Any], kind: AsyncCheckpointerType) -> None:
        self._folder, self._state, self._kind = folder / kind.value, state, kind
        is_process = kind is AsyncCheckpointerType.PROCESS
        self._stager = DefaultStager(StagingOptions(False, is_process, False, False))
        self._group = dist.new_group(backend="gloo")
        self._last: Future[Any] | None = None

    def save(self, step: int) -> Callable[[], bool]:
        path = self._folder / str(step)
        saved = async_save(
            self._state,
            storage_writer=FileSystemWriter(path, thread_count=2),
            process_group=self._group,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        assert isinstance(saved, Future)
        self._last = saved
        return saved.done

    def close(self) -> None:
        if self._last is not None:
            self._last.result()
        self._stager.close()


def ways(folder: Path, state: dict[str, Any], peers: str) -> Iterator[tuple[str, Way]]:
    """Ours and the plain copy beside the named peers, which their launchers keep apart."""
    yield MEMCPY, Copied(folder, state)
    yield OURS, Ours(folder, state)
    if peers == DLROVER:
        yield DLROVER, FlashCheckpoint(folder, state, dist.get_world_size())
    if peers != TORCH:
        return
    yield "dcp.save", Synchronous(folder, state)
    yield "async_save, thread", Asynchronous(folder, state, AsyncCheckpointerType.THREAD)
    yield "async_save, process", Asynchronous(folder, state, AsyncCheckpointerType.PROCESS)


def build(size_mib: int, tensors: int) -> dict[str, Any]:
    """Parameters and moments, sharded over the ranks by rows."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = size_mib * (1 << 20) // tensors // 4 // 256 // dist.get_world_size()
    local = [torch.randn(rows, 256) for _ in range(tensors)]
    return {"tensors": {f"t{i}": DTensor.from_local(each, mesh, [Shard(0)]) for i, each in enumerate(local)}}


class Training:
    """Steps, with the time that each took."""

    def __init__(self) -> None:
        self._left, self._right = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH)
        self._flag = torch.zeros(1)

    def step(self, is_over: bool) -> bool:
        """One step; whether rank 0 is over."""
        for _ in range(4):
            torch.mm(self._left, self._right)
        self._flag[0] = float(is_over and dist.get_rank() == 0)
        dist.all_reduce(self._flag)
        return bool(self._flag.item() > 0)

    def quiet_step_s(self) -> float:
        """Seconds of a step with nothing beside it."""
        took = []
        for _ in range(QUIET_STEPS):
            began = time.perf_counter()
            self.step(False)
            took.append(time.perf_counter() - began)
        return sorted(took)[len(took) // 2]

    def window(self, way: Way, step: int) -> tuple[float, float, float]:
        """Save and train until it is committed: stall, seconds until then, and seconds lost."""
        step_s = self.quiet_step_s()
        dist.barrier()
        began = time.perf_counter()
        is_committed = way.save(step)
        stall_s = time.perf_counter() - began
        count = 1
        while not self.step(is_committed()):
            count += 1
        ended = time.perf_counter() - began
        return stall_s, ended, ended - count * step_s


def check(folder: Path, state: dict[str, Any]) -> None:
    """A save of ours, read by plain PyTorch, has every bit."""
    with Checkpointer(folder / "check") as checkpointer:
        checkpointer.save(1, state, wait=True)
    dist.barrier()
    found: dict[str, Any] = {"tensors": {name: torch.zeros_like(each) for name, each in state["tensors"].items()}}
    load(found, checkpoint_id=folder / "check" / "step-000000000001-a1")
    for name, each in state["tensors"].items():
        assert torch.equal(each.to_local(), found["tensors"][name].to_local()), name


def main() -> None:
    folder, size_mib, tensors, saves, output = Path(sys.argv[1]), *map(int, sys.argv[2:5]), Path(sys.argv[5])
    peers = sys.argv[6]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    state = build(size_mib, tensors)
    check(folder, state)
    samples: dict[str, list[tuple[float, float, float]]] = {}
    with ExitStack() as stack:
        known = dict(ways(folder, state, peers))
        for way in known.values():
            stack.callback(way.close)
        training = Training()
        # A first save comes minutes after a start, when nothing that was started is still importing.
        time.sleep(SETTLE_S)
        training.quiet_step_s()
        for step in range(2, saves + 3):
            for name, way in known.items():
                samples.setdefault(name, []).append(training.window(way, step))
                tidy(folder, step)
        ours = known[OURS]
        assert isinstance(ours, Ours)
    if dist.get_rank() == 0:
        output.write_text(json.dumps({"samples": samples, "skipped": ours.checkpointer.skipped}))


def tidy(folder: Path, step: int) -> None:
    """Remove what peers have saved, between the windows."""
    dist.barrier()
    if dist.get_rank() == 0:
        for name in ("sync", "dlrover", *(kind.value for kind in AsyncCheckpointerType)):
            shutil.rmtree(folder / name / str(step), ignore_errors=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
