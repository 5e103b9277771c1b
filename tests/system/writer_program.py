# SPDX-License-Identifier: Apache-2.0
"""Ranks that save without an end, for tests that kill them: `writer_program.py FOLDER BYTES [leave-at STEP]`.

Each prints `restored STEP`, then `saved STEP` after every save; rank 1 ends itself before the save of the step to leave
at, as a crash does.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from checkpoint import Checkpointer


def main() -> None:
    folder, size = sys.argv[1], int(sys.argv[2])
    leave_at = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = {"tensors": [torch.zeros(size // 4 // 4) for _ in range(4)], "step": 0}
    checkpointer = Checkpointer(folder, keep=2)
    step = checkpointer.restore(state) or 0
    assert all(each.eq(step).all() for each in state["tensors"]) and state["step"] == step  # type: ignore[attr-defined]
    tell(f"restored {step}")
    while True:
        step += 1
        if step == leave_at:
            dist.barrier()
            checkpointer.wait()
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        state["step"] = step
        for each in state["tensors"]:  # type: ignore[attr-defined]
            each.fill_(step)
        checkpointer.save(step, state)
        tell(f"saved {step} {checkpointer.skipped}")
        dist.barrier()
        time.sleep(0.3)


def tell(line: str) -> None:
    if dist.get_rank() == 0:
        os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    main()
