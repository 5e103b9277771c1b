# SPDX-License-Identifier: Apache-2.0
"""Whether snapshots of tensors on a GPU have the right bits, however soon the training goes on; nothing is timed.

Every check writes the tensors behind a delay, so that a copy that does not wait takes the values of before, and spoils
them right after the waiting call, so that a copy that is not waited for takes the values of after.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from checkpoint import Checkpointer

_DELAY_CYCLES = 200_000_000
"""About a tenth of a second of a GPU."""
_LARGE = 16
_PATTERN = 61
"""Small whole numbers, which every dtype holds exactly, the increments of a few steps too."""
_SPOILT = -1


class CheckError(AssertionError):
    """A check failed."""


class Machine:
    """The devices that are checked; a processor alone when rehearsing, where a delay and pinned memory do not exist."""

    def __init__(self, devices: list[torch.device]) -> None:
        self.devices = devices
        self.is_gpu = devices[0].type == "cuda"

    @classmethod
    def found(cls, *, is_rehearsal: bool) -> Machine:
        """Up to two GPUs, the current one first; the processor to rehearse on."""
        if is_rehearsal:
            return cls([torch.device("cpu")])
        return cls([torch.device("cuda", index) for index in range(min(2, torch.cuda.device_count()))])

    def delay(self) -> None:
        """Keep every device busy for a while; what is queued after it starts late."""
        for device in self.devices if self.is_gpu else ():
            with torch.cuda.device(device):
                torch.cuda._sleep(_DELAY_CYCLES)  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Return when the devices have nothing more to do."""
        for device in self.devices if self.is_gpu else ():
            torch.cuda.synchronize(device)


def kinds(machine: Machine, size_mib: int) -> dict[str, torch.Tensor]:
    """Large tensors, `size_mib` in all, and one of every kind that is copied in its own way, over all devices."""

    def pattern(count: int, dtype: torch.dtype, index: int = 0) -> torch.Tensor:
        device = machine.devices[index % len(machine.devices)]
        return (torch.arange(count, device=device) % _PATTERN).to(dtype)

    count = size_mib * (1 << 18) // _LARGE
    found = {f"large{i}": pattern(count, torch.float32, i) for i in range(_LARGE)}
    found["bfloat16"] = pattern(1001, torch.bfloat16)
    found["transposed"] = pattern(30_000, torch.float32, 1).view(100, 300).t()
    found["strided"] = pattern(30_000, torch.float32)[::3]
    found["conjugate"] = torch.complex(pattern(5000, torch.float32, 1), pattern(5000, torch.float32, 1)).conj()
    found["whole numbers"] = pattern(999, torch.int64)
    found["empty"] = pattern(0, torch.float32)
    found["scalar"] = pattern(2, torch.float32)[1]
    return found


class Fresh:
    """Its state dict is a copy that nobody else holds."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name: each.clone() for name, each in self._tensors.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, each in state.items():
            self._tensors[name].copy_(each)


def mirror_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each.cpu().resolve_conj().clone() for name, each in tensors.items()}


def wrong_in(folder: Path, step: int, expected: Mapping[str, torch.Tensor], key: str) -> list[str]:
    """Names of the tensors that plain PyTorch reads with other bits than expected."""
    found: dict[str, Any] = {key: {name: torch.zeros_like(each) for name, each in expected.items()}}
    load(found, checkpoint_id=folder / f"step-{step:012d}-a1", no_dist=True)
    return [name for name, each in expected.items() if not torch.equal(found[key][name], each)]


def demand(wrong: list[str], what: str) -> None:
    if wrong:
        raise CheckError(f"{what}: {len(wrong)} tensors have the wrong bits, {', '.join(wrong[:5])} among them")


def check_steps(machine: Machine, folder: Path, size_mib: int, *, overlap: bool, holds: bool = True) -> list[str]:
    """Save after late updates, spoil the tensors at once; the names that are wrong in the last checkpoint."""
    tensors = kinds(machine, size_mib)
    mirror = mirror_of(tensors)
    wrong = []
    with Checkpointer(folder, keep=9) as checkpointer:
        checkpointer.prepare({"tensors": tensors})
        for step in range(1, 4):
            machine.delay()
            for name, each in tensors.items():
                each.add_(1)
                mirror[name].add_(1)
            checkpointer.save(step, {"tensors": tensors}, overlap=overlap)
            read = [each.sum() for each in tensors.values()]
            if holds:
                checkpointer.before_update()
            for each in tensors.values():
                each.fill_(_SPOILT)
            checkpointer.wait()
            wrong = wrong_in(folder, step, mirror, "tensors")
            if wrong:
                break
            assert len(read) == len(tensors)
            for name, each in tensors.items():
                each.copy_(mirror[name])
    return wrong


def check_fresh(machine: Machine, folder: Path, size_mib: int) -> list[str]:
    """Save copies that nobody holds, and have the same memory taken and written at once."""
    tensors = kinds(machine, size_mib)
    state = {"fresh": Fresh(tensors)}
    expected = mirror_of(tensors)
    with Checkpointer(folder, keep=9) as checkpointer:
        checkpointer.prepare(state)
        machine.delay()
        checkpointer.save(1, state, overlap=True)
        spoilt = [torch.full_like(each, _SPOILT) for each in tensors.values() for _ in range(2)]
        checkpointer.before_update()
        checkpointer.wait()
        assert len(spoilt) == 2 * len(tensors)
    return wrong_in(folder, 1, expected, "fresh")


def check_restore(machine: Machine, folder: Path, size_mib: int) -> list[str]:
    """Restore onto the device, the device's random state too."""
    tensors = kinds(machine, size_mib)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(7, {"tensors": tensors}, wait=True)
        drawn = torch.rand(1000, device=machine.devices[0])
        fresh = {name: torch.zeros_like(each) for name, each in tensors.items()}
        step = checkpointer.restore({"tensors": fresh})
    wrong = [name for name, each in tensors.items() if not torch.equal(fresh[name], each)]
    wrong += [name for name, each in tensors.items() if fresh[name].device != each.device]
    if step != 7:
        wrong.append(f"step {step}")
    if not torch.equal(drawn, torch.rand(1000, device=machine.devices[0])):
        wrong.append("random numbers")
    return wrong


def check_pinned(machine: Machine, folder: Path, size_mib: int) -> list[str]:
    """Slabs are pinned from the start on, and neither pinned nor mapped any more at the end."""
    wrong = []
    checkpointer = Checkpointer(folder)
    checkpointer.prepare({"tensors": kinds(machine, size_mib)})
    slots = checkpointer._saver._slots._slots
    paths = [slot.slab.path for slot in slots]
    places = [slot._bytes.data_ptr() for slot in slots]
    if machine.is_gpu and not all(slot._bytes.is_pinned() for slot in slots):
        wrong.append("pinned at the start")
    checkpointer.close()
    maps = Path("/proc/self/maps").read_text()
    wrong += [path.name for path in paths if path.exists() or path.name in maps]
    for place in places if machine.is_gpu else ():
        with suppress(RuntimeError):
            if int(torch.cuda.cudart().cudaHostUnregister(place)) == 0:  # type: ignore[no-untyped-call]
                wrong.append("still pinned at the end")
    if machine.is_gpu:
        # CUDA keeps the errors of these questions for the next kernel's check; this one takes them.
        with suppress(RuntimeError):
            torch.ones(1, device=machine.devices[0])
    return wrong


def run(machine: Machine, size_mib: int, directory: Path | None) -> list[str]:
    """All checks, told as they pass; what the control saw is the answer.

    Raises:
        CheckError: bits are wrong, or memory is kept.
    """
    checks: dict[str, Callable[[Path], list[str]]] = {
        "saves that overlap the next forward and backward": lambda f: check_steps(machine, f, size_mib, overlap=True),
        "saves that return when they are copied": lambda f: check_steps(machine, f, size_mib, overlap=False),
        "tensors that nobody holds after the call": lambda f: check_fresh(machine, f, size_mib),
        "a restore onto the device": lambda f: check_restore(machine, f, size_mib),
        "memory pinned, and given back": lambda f: check_pinned(machine, f, size_mib),
    }
    for what, check in checks.items():
        with tempfile.TemporaryDirectory(dir=directory) as name:
            demand(check(Path(name)), what)
        print(f"right: {what}", flush=True)
    with tempfile.TemporaryDirectory(dir=directory) as name:
        torn = check_steps(machine, Path(name), size_mib, overlap=True, holds=False)
    print(f"control: without the waiting call {len(torn)} tensors are torn", flush=True)
    if len(machine.devices) < 2:
        print("one device here: copies from two at a time were not checked", flush=True)
    return torn
