# SPDX-License-Identifier: Apache-2.0
"""Folders as other programs leave them: file names and small files as documented in each reader's docstring."""

from __future__ import annotations

import json
import struct
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_saver

from checkpoint.api import open_catalogue
from checkpoint.foreign import ForeignCatalogue


def catalogue(root: Path) -> ForeignCatalogue:
    return open_catalogue(str(root)).foreign()


def whole_steps(root: Path) -> list[int | None]:
    """Steps of the checkpoints that are whole after a thorough look, newest first."""
    return [each.step for each in catalogue(root).whole()]


def faults(root: Path, folder: str) -> list[str]:
    found = catalogue(root).verified(folder)
    assert found is not None
    return [str(each) for each in found.faults]


def torch_file(path: Path, content: dict[str, Any] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"weight": torch.arange(8.0), **(content or {})}, path)
    return path


def safetensors_file(path: Path) -> Path:
    """One tensor of 4 floats (github.com/huggingface/safetensors, section Format)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "__metadata__": {}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    return path


def dcp_folder(path: Path) -> Path:
    """Written by PyTorch itself."""
    state = {"model": {"w": torch.arange(64.0), "b": torch.ones(3)}, "step": 7}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        state_dict_saver.save(state, checkpoint_id=path, no_dist=True)
    return path


def cut(path: Path, by: int = 1) -> None:
    """Shorten a file, as a full disk or a kill does."""
    path.write_bytes(path.read_bytes()[:-by])


def hugging_face(root: Path, step: int) -> Path:
    folder = root / f"checkpoint-{step}"
    safetensors_file(folder / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        torch_file(folder / name)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 1.0}))
    return folder


def deepspeed(root: Path, step: int, *, data: int = 2, model: int = 1) -> Path:
    """ZeRO 1 or 2; `latest` names the step."""
    folder = root / f"global_step{step}"
    for rank in range(model):
        facts = {"dp_world_size": data, "mp_world_size": model, "global_steps": step}
        torch_file(folder / f"mp_rank_{rank:02d}_model_states.pt", facts)
        for part in range(data):
            torch_file(folder / f"bf16_zero_pp_rank_{part}_mp_rank_{rank:02d}_optim_states.pt")
    (root / "latest").write_text(folder.name)
    return folder


def megatron(root: Path, step: int, *, ranks: tuple[str, ...] = ("00_000", "00_001", "01_000", "01_001")) -> Path:
    """The older layout, tensor x pipeline parallel."""
    folder = root / f"iter_{step:07d}"
    for rank in ranks:
        torch_file(folder / f"mp_rank_{rank}" / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def megatron_dist(root: Path, step: int) -> Path:
    """The newer layout."""
    folder = dcp_folder(root / f"iter_{step:07d}")
    torch_file(folder / "common.pt")
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder
