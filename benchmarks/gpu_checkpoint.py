# SPDX-License-Identifier: Apache-2.0
"""Saves of a state on a GPU: first that they are right, then what they cost training, beside PyTorch's `async_save`.

Under five minutes, wherever there is a CUDA device, and with one process. Where there is none it says so, writes no
result and ends with `NO_GPU`, so that nobody takes it for a pass. `--rehearse` runs the same lines on the processor to
show that they run; it measures nothing and writes nothing.

A step is matrix products of about `STEP_S`, then an update of every weight, which waits for the copy. All ways take
turns, in windows from the call to the commit; stall is how long the call holds the host, lost is a window's length less
its steps' length without a save. The bars: a save that returns when it is copied stalls at most 1.15 times a plain copy
into pinned memory, the first one too; one that overlaps loses less time than the best of PyTorch's ways.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse, async_save

from benchmarks import gpu_checks, measuring
from benchmarks.gpu_checks import CheckError, Machine
from benchmarks.measuring import Bar
from checkpoint import Checkpointer

NO_GPU = 77
"""Exit code for a machine where nothing was checked: what test harnesses take for `skipped`."""
SIZE_MIB, CHECKED_MIB, TENSORS = 1024, 256, 300
ROUNDS = 6
BUDGET_S = 200.0
"""No round begins later than this, so that the whole stays under five minutes on a slow disk."""
STEP_S = 0.05
QUIET_STEPS = 10
STALL_BAR = 1.15
PLAIN, COPIED, OVERLAPPED = "plain copy, pinned", "ours, returns when copied", "ours, overlapped"
COLUMNS = ("way to save", "first stall s", "stall s", "least", "GiB/s", "committed after s", "slower", "lost s a save")

Sample: TypeAlias = tuple[float, float, float, float]
"""Stall, seconds to the commit, a step's length until then over a quiet step's, seconds lost."""


class Way(Protocol):
    """One way to save; `save` returns how to ask whether it is committed."""

    def save(self, step: int) -> Callable[[], bool]: ...

    def before_update(self) -> None: ...

    def close(self) -> None: ...


class Plain:
    """Copies into pinned tensors of its own, waited for: what a device gives at best."""

    def __init__(self, machine: Machine, tensors: dict[str, torch.Tensor]) -> None:
        self._machine, self._sources = machine, list(tensors.values())
        self._targets = [torch.zeros(s.shape, dtype=s.dtype, pin_memory=machine.is_gpu) for s in self._sources]

    def save(self, _step: int) -> Callable[[], bool]:
        for target, source in zip(self._targets, self._sources, strict=True):
            target.copy_(source, non_blocking=True)
        self._machine.synchronize()
        return lambda: True

    def before_update(self) -> None:
        """It has waited."""

    def close(self) -> None:
        self._targets.clear()


class Ours:
    """This library."""

    def __init__(self, folder: Path, tensors: dict[str, torch.Tensor], *, overlap: bool) -> None:
        self._folder, self._state, self._overlap = folder, {"tensors": tensors}, overlap
        self._checkpointer = Checkpointer(folder, keep=1)
        self._checkpointer.prepare(self._state)

    def save(self, step: int) -> Callable[[], bool]:
        self._checkpointer.save(step, self._state, overlap=self._overlap)
        return (self._folder / f"step-{step:012d}-a1").exists

    def before_update(self) -> None:
        self._checkpointer.before_update()

    def close(self) -> None:
        self._checkpointer.close()


class Asynchronous:
    """`async_save` with its best stager: kept buffers, pinned and shared, filled beside the step."""

    def __init__(
        self, machine: Machine, folder: Path, tensors: dict[str, torch.Tensor], kind: AsyncCheckpointerType
    ) -> None:
        self._folder, self._state, self._kind = folder, {"tensors": tensors}, kind
        gpu = machine.is_gpu
        self._stager = DefaultStager(StagingOptions(gpu, kind is AsyncCheckpointerType.PROCESS, gpu, gpu))
        self._staged: Future[Any] | None = None
        self._last: Future[Any] | None = None

    def save(self, step: int) -> Callable[[], bool]:
        saved = async_save(
            self._state,
            storage_writer=FileSystemWriter(self._folder / str(step), thread_count=2),
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        if isinstance(saved, AsyncSaveResponse):
            self._staged, self._last = saved.staging_completion, saved.upload_completion
        else:
            self._last = saved
        return self._last.done

    def before_update(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def close(self) -> None:
        if self._last is not None:
            self._last.result()
        self._stager.close()


def ways(machine: Machine, folder: Path, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, Way]]:
    yield PLAIN, Plain(machine, tensors)
    yield COPIED, Ours(folder / "copied", tensors, overlap=False)
    yield OVERLAPPED, Ours(folder / "overlapped", tensors, overlap=True)
    for kind in AsyncCheckpointerType:
        needed = sum(each.nbytes for each in tensors.values()) if kind is AsyncCheckpointerType.PROCESS else 0
        free = shutil.disk_usage("/dev/shm").free
        if free < needed:
            # Its stager has no other place, and a page that is not there ends the process.
            print(f"async_save, {kind.value}: left out, /dev/shm has {free} bytes and it needs {needed}", flush=True)
            continue
        yield f"async_save, {kind.value}, pinned", Asynchronous(machine, folder / kind.value, tensors, kind)


class Training:
    """Steps that read, then write the weights."""

    def __init__(self, machine: Machine, tensors: dict[str, torch.Tensor]) -> None:
        self._machine, self._weights = machine, list(tensors.values())
        device, width, dtype = machine.devices[0], 8192 if machine.is_gpu else 256, torch.bfloat16
        self._left, self._right = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
        self._out = torch.empty_like(self._left)
        self._products = 1
        self.step()
        took = self.quiet_step_s()
        self._products = max(1, round(STEP_S / took)) if machine.is_gpu else 1

    def step(self, before_update: Callable[[], None] = lambda: None) -> None:
        for _ in range(self._products):
            torch.mm(self._left, self._right, out=self._out)
        before_update()
        torch._foreach_add_(self._weights, 1.0)
        self._machine.synchronize()

    def quiet_step_s(self) -> float:
        """Seconds of a step with nothing beside it."""
        took = []
        for _ in range(QUIET_STEPS):
            began = time.perf_counter()
            self.step()
            took.append(time.perf_counter() - began)
        return measuring.median(took)

    def window(self, way: Way, step: int) -> Sample:
        """Save and train until it is committed."""
        step_s = self.quiet_step_s()
        began = time.perf_counter()
        is_committed = way.save(step)
        stall_s = time.perf_counter() - began
        count = 1
        self.step(way.before_update)
        while not is_committed():
            self.step()
            count += 1
        ended = time.perf_counter() - began
        return stall_s, ended, (ended - stall_s) / (count * step_s), ended - count * step_s


def measured(machine: Machine, folder: Path, size_mib: int, rounds: int) -> dict[str, list[Sample]]:
    """All ways in turns, each with the same weights."""
    count = size_mib * (1 << 18) // TENSORS
    tensors = {f"t{i}": torch.full((count,), float(i), device=machine.devices[0]) for i in range(TENSORS)}
    found: dict[str, list[Sample]] = {}
    with ExitStack() as stack:
        known: dict[str, Way] = {}
        for name, way in ways(machine, folder, tensors):
            stack.callback(way.close)
            known[name] = way
        training = Training(machine, tensors)
        began = time.monotonic()
        for step in range(1, rounds + 1):
            if time.monotonic() - began > BUDGET_S:
                print(f"the time for it is over after {step - 1} rounds", flush=True)
                break
            for name, way in known.items():
                found.setdefault(name, []).append(training.window(way, step))
                for kind in AsyncCheckpointerType:
                    shutil.rmtree(folder / kind.value / str(step), ignore_errors=True)
    return found


def tell(began: measuring.Place, options: Any, found: dict[str, list[Sample]], torn: list[str]) -> int:
    """Table, bars and result; the exit code."""
    bytes_saved = options.size_mib * (1 << 20)
    rows, told = [], {}
    for way, each in found.items():
        stall, ended, slower, lost = ([one[i] for one in each] for i in range(4))
        middle = measuring.median
        rate = bytes_saved / middle(stall) / 2**30
        rows.append((way, stall[0], middle(stall), min(stall), rate, middle(ended), middle(slower), middle(lost)))
        told[way] = {
            "first_stall_s": stall[0],
            "stall_s": measuring.spread(stall),
            "committed_after_s": measuring.spread(ended),
            "step_over_quiet_step": measuring.spread(slower),
            "lost_s": measuring.spread(lost),
        }
    measuring.show(COLUMNS, rows)
    print("GiB/s is bytes by stall: of the device's memory to the host's only where the call waits for the copy")
    plain_s = measuring.median([each[0] for each in found[PLAIN]])
    stalls = [each[0] for each in found[COPIED]]
    lost_s = {way: sum(one[3] for one in each) for way, each in found.items()}
    best_s = min(seconds for way, seconds in lost_s.items() if way.startswith("async_save"))
    bars = [
        Bar("stall over a plain copy into pinned memory", measuring.median(stalls) / plain_s, STALL_BAR, "times"),
        Bar("first stall over a plain copy into pinned memory", stalls[0] / plain_s, STALL_BAR, "times"),
        Bar("time lost, overlapped, over the best peer's", lost_s[OVERLAPPED] / best_s, 1.0, "times"),
    ]
    parameters = {
        "size_mib": options.size_mib,
        "rounds": len(found[PLAIN]),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    return measuring.conclude(
        began, options.output, parameters, {"torn_without_the_waiting_call": torn, "ways": told}, bars
    )


def main() -> int:
    """Check, then measure; the exit code."""
    parser = measuring.options(__doc__, "gpu_checkpoint")
    parser.add_argument("--size-mib", type=int, default=SIZE_MIB, help="of the state that is timed")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to write to")
    parser.add_argument("--rehearse", action="store_true", help="run the lines on the processor; nothing is measured")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        print(f"gpu_checkpoint DID NOT RUN: torch {torch.__version__} finds no CUDA device here.")
        print(f"Nothing was checked and nothing was measured; exit code {NO_GPU}.")
        return NO_GPU
    warnings.simplefilter("ignore")
    began, machine = measuring.place(), Machine.found(is_rehearsal=options.rehearse)
    try:
        torn = gpu_checks.run(machine, 8 if options.rehearse else CHECKED_MIB, options.folder)
    except CheckError as error:
        print(f"WRONG: {error}")
        return 1
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        try:
            found = measured(machine, folder, *((8, 1) if options.rehearse else (options.size_mib, ROUNDS)))
        finally:
            dist.destroy_process_group()
    if options.rehearse:
        print(f"rehearsal on the processor: {len(found)} ways ran; no CUDA path was checked and NOTHING was measured")
        return 0
    return tell(began, options, found, torn)


if __name__ == "__main__":
    sys.exit(main())
