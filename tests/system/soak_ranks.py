# SPDX-License-Identifier: Apache-2.0
"""One rank of the kill soak: its state is a function of the step, so that a restore can be checked bit by bit.

It says `restored STEP` on the pipe that it is given, waits for a byte, and then saves after every step until the stop
file is there or it is killed.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from checkpoint import Checkpointer

WORLD_SIZE = 2
KEEP = 2
_PATIENCE = timedelta(seconds=120)
_PACE_S, _OBJECT_STORE_PACE_S = 0.01, 0.3
_FLOATS, _INTEGERS, _HALVES = 800_000, 100_000, 50_000


class WrongStateError(Exception):
    """What was restored is not the state of its step."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What a launch's ranks are to do. `writer_program` is the interpreter that starts a writer, None for Python's."""

    uri: str
    meeting: Path
    stop: Path
    overlap: bool
    writer_program: str | None


def fresh_state() -> dict[str, Any]:
    """A state whose values are of no step: large and small tensors, several dtypes, plain values."""
    return {
        "floats": torch.full((_FLOATS,), -1.0),
        "more": {"integers": torch.full((_INTEGERS,), -1), "list": [torch.full((_HALVES,), -1.0).bfloat16(), -1]},
        "scalar": torch.tensor(-1.0, dtype=torch.float64),
        "text": "",
    }


def fill(state: dict[str, Any], step: int) -> None:
    """Give every value of the state what it has after a step; no two steps share one. Float32 is exact to 2**24."""
    more = state["more"]
    torch.arange(step, step + _FLOATS, out=state["floats"])
    torch.arange(step * 7919, step * 7919 + _INTEGERS, out=more["integers"])
    more["list"][0].copy_(torch.arange(_HALVES) % 128 + step % 128)
    more["list"][1] = step
    state["scalar"].fill_(step / 3)
    state["text"] = f"after step {step}" + "." * (step % 50)


def difference(state: dict[str, Any], step: int) -> str:
    """The first value that is not what it has to be after the step, or nothing."""
    expected = fresh_state()
    if step:
        fill(expected, step)
    pairs = [
        ("floats", state["floats"], expected["floats"]),
        ("more.integers", state["more"]["integers"], expected["more"]["integers"]),
        ("more.list.0", state["more"]["list"][0], expected["more"]["list"][0]),
        ("scalar", state["scalar"], expected["scalar"]),
    ]
    for name, mine, theirs in pairs:
        if not torch.equal(mine, theirs):
            return f"{name} differs in {int((mine != theirs).sum())} of {mine.numel()} values"
    plain = (state["more"]["list"][1], state["text"])
    return "" if plain == (expected["more"]["list"][1], expected["text"]) else f"plain values are {plain}"


def work(rank: int, errand: Errand, tell: int, hear: int) -> None:
    """Be a rank; returns at a clean end.

    Raises:
        WrongStateError: what was restored is not the state of its step.
    """
    local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD_SIZE, "LOCAL_WORLD_SIZE": WORLD_SIZE}
    os.environ.update({name: str(value) for name, value in local.items()})
    sys.executable = errand.writer_program or sys.executable
    meeting = dist.FileStore(str(errand.meeting), WORLD_SIZE)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=WORLD_SIZE, timeout=_PATIENCE)
    checkpointer = Checkpointer(errand.uri, every=1, keep=KEEP)
    state = fresh_state()
    step = checkpointer.restore(state) or 0
    if wrong := difference(state, step):
        raise WrongStateError(f"rank {rank} restored step {step}, of which {wrong}")
    os.write(tell, f"restored {step}\n".encode())
    os.read(hear, 1)
    while not _is_stopped(errand.stop):
        step += 1
        checkpointer.before_update()
        fill(state, step)
        checkpointer.save(step, state, overlap=errand.overlap)
        time.sleep(_OBJECT_STORE_PACE_S if "://" in errand.uri else _PACE_S)
    checkpointer.close()


def _is_stopped(stop: Path) -> bool:
    """Whether any rank sees the stop file; this is also what keeps the ranks in step."""
    is_there = torch.tensor(stop.exists(), dtype=torch.int32)
    dist.all_reduce(is_there, op=dist.ReduceOp.MAX)
    return bool(is_there.item())
