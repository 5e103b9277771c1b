# SPDX-License-Identifier: Apache-2.0
"""A small training that uses every kind of state, and helpers to look at what a save left."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from checkpoint import Checkpointer
from checkpoint.api import CheckpointRef, open_catalogue
from checkpoint.ranks import Ranks
from checkpoint.restore import Restoration
from checkpoint.stores import open_store
from checkpoint.tiers import StoreTier, read


class Position:
    """A data position, as a script would keep one."""

    def __init__(self) -> None:
        self.position = 0
        self.skipped: list[tuple[int, int]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.skipped = state["position"], state["skipped"]


def fresh_state(seed: int, *, width: int = 6) -> dict[str, Any]:
    """A new training's state; dropout and batch norm make it depend on the random state and on buffers."""
    torch.manual_seed(seed)
    random.seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 5]),
        "data": Position(),
        "average": torch.zeros(3),
        "notes": {"epoch": 0, "history": [torch.zeros(2), {"best": 0.0}], "empty": {}},
    }


def train(state: dict[str, Any], steps: int) -> list[float]:
    """Run optimizer steps on random batches; returns the losses."""
    losses = []
    for _ in range(steps):
        state["optimizer"].zero_grad()
        loss = state["model"](torch.randn(5, 4) + random.random()).square().mean()
        loss.backward()
        state["optimizer"].step()
        state["scheduler"].step()
        state["data"].position += 1
        state["average"] += loss.detach()
        state["notes"]["epoch"] += 1
        losses.append(loss.item())
    return losses


def save_steps(folder: Path, steps: list[int], *, keep: int = 10) -> dict[int, list[float]]:
    """Train and commit at each of the steps; returns for each the next two losses of a run that goes on."""
    state = fresh_state(0)
    with Checkpointer(folder, every=1, keep=keep) as checkpointer:
        done = 0
        for step in steps:
            train(state, step - done)
            done = step
            checkpointer.save(step, state, wait=True)
    return {step: train_on(folder, step) for step in steps}


def train_on(folder: Path, step: int) -> list[float]:
    """The losses of two steps after the state of a committed step, which must be the one that is restored."""
    (attempt,) = {each.attempt for each in open_catalogue(str(folder)).committed() if each.step == step}
    state = fresh_state(99)
    ranks = Ranks(0, 1, None)
    restoration = read(StoreTier(open_store(str(folder)), CheckpointRef(step, attempt), ranks), state, ranks, rank=0)
    assert isinstance(restoration, Restoration)
    restoration.apply()
    return train(state, 2)


def events_of(prefix: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The events that a rank wrote."""
    return [json.loads(line) for line in Path(f"{prefix}.rank-{rank}.jsonl").read_text().splitlines()]


def flip(path: Path, offset: int, mask: int = 0x01) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= mask
    path.write_bytes(bytes(content))
