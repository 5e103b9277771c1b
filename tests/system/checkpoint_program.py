# SPDX-License-Identifier: Apache-2.0
"""The training that the checkpoint tests launch: `checkpoint_program.py FOLDER MODE STEPS [crash|timed|resave]`.

MODE is `ddp`, `fsdp` (FSDP2 over all ranks) or `bare` (ranks without a process group). Rank r writes the losses and a
digest of its final state to `<FOLDER>.rank-<r>.json`. `timed` saves by time, in slow steps;
`resave` does not train but saves what was restored.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from checkpoint import Checkpointer

SAVE_EVERY = 3


def build(mode: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.Dropout(0.1), torch.nn.Linear(7, 3), torch.nn.Linear(3, 1)
    )
    if mode == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    replica: torch.Tensor = torch.zeros(4)
    if mode == "fsdp":
        fully_shard(model)
        replica = distribute_tensor(replica, init_device_mesh("cpu", (dist.get_world_size(),)), [Replicate()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "average": torch.zeros(2),
        "replica": replica,
    }


def train_step(state: dict[str, Any], step: int) -> float:
    batch = torch.full((4, 5), float(step)) + torch.randn(4, 5)
    loss = state["model"](batch).square().mean()
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    state["scheduler"].step()
    state["average"] += step
    state["replica"] += step
    return float(loss.item())


def digest(state: dict[str, Any]) -> str:
    found = hashlib.sha256()
    optimizer = state["optimizer"].state_dict()["state"]
    tensors = [*state["model"].state_dict().values(), state["average"], state["replica"]]
    tensors += [each for moments in optimizer.values() for each in moments.values()]
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        found.update(local.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    folder, mode, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rank = int(os.environ.get("RANK", "0"))
    if mode != "bare":
        dist.init_process_group("gloo")
    state = build(mode)
    # Without gradients to keep ranks together, they are replicas only while they draw the same batches.
    torch.manual_seed(100 if mode == "bare" else 100 + rank)
    losses = {}
    checkpointer = Checkpointer(folder, every="5s" if "timed" in sys.argv else SAVE_EVERY)
    start = checkpointer.restore(state) or 0
    if "resave" in sys.argv:
        checkpointer.save(start + 1, state, wait=True)
        steps = start
    for step in range(start + 1, steps + 1):
        losses[step] = train_step(state, step)
        if "timed" in sys.argv:
            time.sleep(0.05)
        if checkpointer.due(step):
            checkpointer.save(step, state)
    checkpointer.close()
    report = {"start": start, "losses": losses, "digest": digest(state), "attempt": checkpointer.attempt}
    Path(f"{folder}.rank-{rank}.json").write_text(json.dumps(report))
    if "crash" in sys.argv:
        os._exit(1)


if __name__ == "__main__":
    main()
    # Only when main has let the model go: as the last to hold the process group, DistributedDataParallel's reducer
    # waits for gloo's threads with the interpreter's lock in hand, which one of them may want (seen in torch 2.13).
    if dist.is_initialized():
        dist.destroy_process_group()
