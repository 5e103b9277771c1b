# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT, supervised: `supervisor run -- torchrun --standalone --nproc-per-node 2 examples/train_gpt.py`.

Without a supervisor it does the same and still writes and restores checkpoints. What supervision adds is the difference
to `train_gpt_plain.py`.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import gpt
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from checkpoint import Checkpointer
from supervisor.training import supervise


def main() -> None:
    """Train for the given number of steps and write the digest of the weights."""
    parser = gpt.arguments("Train a small GPT, supervised.")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    options = parser.parse_args()
    run = supervise()
    place = gpt.start(options.seed)
    network = gpt.GPT(options).to(place.device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95))
    scheduler = gpt.schedule(optimizer, options)
    batches = gpt.Batches(options, place)
    torch.manual_seed(options.seed + place.rank)  # dropout differs between ranks

    checkpoints = Checkpointer(options.checkpoints, every=options.save_every, run=run)
    state = {"model": network, "optimizer": optimizer, "scheduler": scheduler, "data": run.data_position}
    step = done = checkpoints.restore(state) or 0

    progress = gpt.Progress(place, options.batch * options.context)
    progress.restart(done)
    for step, (inputs, targets) in islice(run.batches(batches, start=done), options.steps - done):
        loss = model(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        run.report(step, loss=loss, grad_norm=norm, tokens=inputs.numel())
        progress.tell(step, loss)
        if step % options.evaluate_every == 0:
            with run.phase("evaluation"):
                progress.say(f"step {step} held-out loss {gpt.evaluate(network, batches):.4f}")
        should_stop = run.should_stop
        if checkpoints.due(step) or should_stop or step == options.steps:
            checkpoints.save(step, state, wait=step == options.steps)
        if should_stop:
            break
    checkpoints.close()

    if step == options.steps:
        weights = gpt.digest(network)
        progress.say(f"weights {weights}")
        if options.digest and place.rank == 0:
            options.digest.write_text(weights + "\n")
    else:
        progress.say(f"stopped after step {step}")


if __name__ == "__main__":
    main()
    # Only when main has let the model go: as the last to hold the process group, DistributedDataParallel's reducer
    # waits for gloo's threads with the interpreter's lock in hand, which one of them may want (seen in torch 2.13).
    dist.destroy_process_group()
