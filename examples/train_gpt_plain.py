# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT on the text that ships with Python: `torchrun --nproc-per-node 2 examples/train_gpt_plain.py`."""

from __future__ import annotations

import gpt
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for the given number of steps and write the digest of the weights."""
    options = gpt.arguments("Train a small GPT.").parse_args()
    place = gpt.start(options.seed)
    network = gpt.GPT(options).to(place.device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95))
    scheduler = gpt.schedule(optimizer, options)
    batches = gpt.Batches(options, place)
    torch.manual_seed(options.seed + place.rank)  # dropout differs between ranks

    progress = gpt.Progress(place, options.batch * options.context)
    for step in range(1, options.steps + 1):
        inputs, targets = batches[step - 1]
        loss = model(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        progress.tell(step, loss)
        if step % options.evaluate_every == 0:
            progress.say(f"step {step} held-out loss {gpt.evaluate(network, batches):.4f}")

    weights = gpt.digest(network)
    progress.say(f"weights {weights}")
    if options.digest and place.rank == 0:
        options.digest.write_text(weights + "\n")


if __name__ == "__main__":
    main()
    # Only when main has let the model go: as the last to hold the process group, DistributedDataParallel's reducer
    # waits for gloo's threads with the interpreter's lock in hand, which one of them may want (seen in torch 2.13).
    dist.destroy_process_group()
