# SPDX-License-Identifier: Apache-2.0
"""A small training under torchrun: `train.py STEPS [stuck|raise]`; its last line is the digest of the weights."""

from __future__ import annotations

import hashlib
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from supervisor.training import supervise

STUCK_AT = 3


def main() -> None:
    steps, way = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    dist.init_process_group("gloo")
    run = supervise()
    print("threads", torch.get_num_threads(), "random", random.random(), flush=True)
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, steps + 1):
        if way == "raise" and step == STUCK_AT:
            raise ValueError("a mistake in the script")
        if way == "stuck" and step == STUCK_AT and dist.get_rank() == 1:
            time.sleep(3600)
        loss = model(torch.randn(64, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(step, loss=loss, tokens=64)
        time.sleep(0.02)
        if run.should_stop:
            break
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print("digest", hashlib.sha256(weights).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
    # Only when main has let the model go: as the last to hold the process group, DistributedDataParallel's reducer
    # waits for gloo's threads with the interpreter's lock in hand, which one of them may want (seen in torch 2.13).
    dist.destroy_process_group()
