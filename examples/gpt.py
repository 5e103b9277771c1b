# SPDX-License-Identifier: Apache-2.0
"""A small byte-level GPT, its text and its batches, shared by the plain and the supervised script.

Everything is a pure function of the arguments and the number of ranks: batch `i` of (seed, i), the weights of the seed.
The text is the language reference that ships with Python, so nothing is downloaded. With more than two ranks the order
of summing depends on how DistributedDataParallel lays out its buckets, which it changes after the first step.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import cast

import torch
import torch.distributed as dist
from poison import Poison
from torch import Tensor, nn
from torch.nn import functional

HELD_OUT = 0.05
EVALUATION_BATCHES = 4
VOCABULARY = 256


def arguments(description: str) -> argparse.ArgumentParser:
    """Return the options that both scripts have."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--steps", type=int, default=600, help="optimizer steps")
    add("--seed", type=int, default=1)
    add("--layers", type=int, default=4)
    add("--width", type=int, default=160)
    add("--heads", type=int, default=4)
    add("--dropout", type=float, default=0.1)
    add("--batch", type=int, default=8, help="sequences a step, over all ranks")
    add("--context", type=int, default=64, help="bytes a sequence")
    add("--lr", type=float, default=1e-3, help="learning rate after the warm-up")
    add("--warm-up", type=int, default=20, help="steps until the learning rate is reached")
    add("--evaluate-every", type=int, default=100, help="steps")
    add("--digest", type=Path, help="file for the SHA-256 of the final weights")
    add("--poison", help="fault injection: train on garbage at the batches FROM-TO, both included")
    add("--nan-at", type=int, help="fault injection: the loss of this batch is not a number")
    return parser


@dataclass(frozen=True)
class Place:
    """Where this process stands among the ranks."""

    rank: int
    world_size: int
    device: torch.device


def start(seed: int) -> Place:
    """Join the other ranks; computing is deterministic from here on."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    has_gpu = torch.cuda.is_available()
    backend = "nccl" if has_gpu else "gloo"
    if dist.is_torchelastic_launched():
        dist.init_process_group(backend)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but not listed in __all__
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(seed)
    return Place(dist.get_rank(), dist.get_world_size(), device)


class Batches:
    """Batches by index, without end: inputs and targets of shape (rows, context), each rank its share of the rows."""

    def __init__(self, options: argparse.Namespace, place: Place) -> None:
        if options.batch % place.world_size:
            raise SystemExit(f"--batch {options.batch} must be a multiple of the {place.world_size} ranks")
        text = "".join(topics[name] for name in sorted(topics)).encode()
        bytes_held_out = int(len(text) * HELD_OUT)
        self._train = torch.tensor(list(text[:-bytes_held_out]), dtype=torch.uint8)
        self._held_out = torch.tensor(list(text[-bytes_held_out:]), dtype=torch.uint8)
        self._options = options
        self._place = place
        self._poison = Poison.parsed(options.poison, options.nan_at)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self._cut(self._train, index)
        return inputs, self._poison.spoiled(index, targets)

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        """Return the batches of the evaluation, always the same."""
        return [self._cut(self._held_out, index) for index in range(EVALUATION_BATCHES)]

    def _cut(self, text: Tensor, index: int) -> tuple[Tensor, Tensor]:
        options, place = self._options, self._place
        generator = torch.Generator().manual_seed((options.seed << 32) + index)
        begins = torch.randint(len(text) - options.context - 1, (options.batch,), generator=generator)
        mine = begins[place.rank :: place.world_size, None]
        rows = text[mine + torch.arange(options.context + 1)].long().to(place.device)
        return rows[:, :-1], rows[:, 1:]


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a normalisation and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (rows, context, width) to the same shape."""
        rows, context, width = hidden.shape
        parts = self.query_key_value(self.before_attention(hidden)).view(rows, context, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.dropout(self.attended(mixed.transpose(1, 2).reshape(rows, context, width)))
        return hidden + cast("Tensor", self.feed_forward(hidden))


class GPT(nn.Module):
    """Predicts the next byte; called with inputs and targets it returns the mean cross entropy."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.byte = nn.Embedding(VOCABULARY, options.width)
        self.place = nn.Embedding(options.context, options.width)
        self.blocks = nn.Sequential(
            *(Block(options.width, options.heads, options.dropout) for _ in range(options.layers))
        )
        self.head = nn.Sequential(nn.LayerNorm(options.width), nn.Linear(options.width, VOCABULARY))
        self.apply(_initialise)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Map two tensors of bytes (rows, context) to a scalar."""
        hidden = self.byte(inputs) + self.place.weight[: inputs.shape[1]]
        logits = self.head(self.blocks(hidden))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def schedule(optimizer: torch.optim.Optimizer, options: argparse.Namespace) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a linear warm-up followed by a cosine down to a tenth."""

    def factor(step: int) -> float:
        if step < options.warm_up:
            return float((step + 1) / options.warm_up)
        done = (step - options.warm_up) / max(1, options.steps - options.warm_up)
        return 0.55 + 0.45 * math.cos(math.pi * min(1.0, done))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def evaluate(model: GPT, batches: Batches) -> float:
    """Return this rank's mean loss on held-out text."""
    model.eval()
    with torch.no_grad():
        losses = [model(inputs, targets).item() for inputs, targets in batches.held_out()]
    model.train()
    return float(sum(losses) / len(losses))


class Progress:
    """Prints a line every 20 steps, on rank 0."""

    EVERY = 20

    def __init__(self, place: Place, tokens_a_step: int) -> None:
        self._is_told = place.rank == 0
        self._tokens = tokens_a_step
        self._since = (0, time.monotonic())

    def tell(self, step: int, loss: Tensor) -> None:
        """Print step, loss of this rank and tokens a second of all ranks."""
        if not self._is_told or step % self.EVERY:
            return
        before, began = self._since
        self._since = (step, time.monotonic())
        rate = self._tokens * (step - before) / (self._since[1] - began)
        print(f"step {step} loss {loss.item():.4f} tokens/s {rate:.0f}", flush=True)

    def restart(self, step: int) -> None:
        """Count from here: what was done before is not of this launch."""
        self._since = (step, time.monotonic())

    def say(self, line: str) -> None:
        """Print a line."""
        if self._is_told:
            print(line, flush=True)


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all weights, in the order of their sorted names."""
    total = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        whole = tensor.detach().cpu().contiguous()
        total.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return total.hexdigest()
