# SPDX-License-Identifier: Apache-2.0
"""A rank of a job of two nodes, which are two folders for memory: `node_program.py STORE EVERY MEMORY_EVERY STEPS`.

Its state is a function of the step. It restores and checks that, trains until it is killed or the steps are done, and
writes `restored STEP` and `saved STEP` to its standard output.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from checkpoint import Checkpointer


def fresh_state() -> dict[str, Any]:
    return {"large": [torch.full((200_000,), -1.0) for _ in range(4)], "small": torch.tensor(-1.0), "step": -1}


def fill(state: dict[str, Any], step: int) -> None:
    for index, each in enumerate(state["large"]):
        torch.arange(step + index, step + index + each.numel(), out=each)
    state["small"].fill_(step)
    state["step"] = step


def main() -> None:
    store, every, memory_every, steps = sys.argv[1], *map(int, sys.argv[2:])
    dist.init_process_group("gloo")
    state, expected = fresh_state(), fresh_state()
    checkpointer = Checkpointer(store, every=every, keep=2, memory_every=memory_every or None)
    step = checkpointer.restore(state) or 0
    if step:
        fill(expected, step)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(state["large"], expected["large"], strict=True))
        assert torch.equal(state["small"], expected["small"]) and state["step"] == step
    tell(f"restored {step}")
    while step < steps:
        step += 1
        fill(state, step)
        if checkpointer.due(step):
            checkpointer.save(step, state)
            tell(f"saved {step} {checkpointer.skipped}")
        dist.barrier()
        time.sleep(0.05)
    checkpointer.close()


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
