# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Trainer: `checkpoint-1000/` folders with `trainer_state.json`, which is written after all else.

Names as in transformers/trainer.py (`_save_checkpoint`): a model or adapter, whole or with an index, `optimizer.pt`
and `scheduler.pt`, a random state for each rank; under FSDP `pytorch_model_fsdp_0/` and `optimizer_0/` (distributed
checkpoints), under DeepSpeed a `global_step1000/` folder. With `save_only_model` there is a model and no more.
"""

from __future__ import annotations

import json
import re

from checkpoint.api import DamagedFile, Store
from checkpoint.foreign import dcp, deepspeed, safetensors
from checkpoint.foreign.folder import Folder
from checkpoint.foreign.found import Format, Reader, last_number, missing

STATE = "trainer_state.json"
_STEP = re.compile(r"checkpoint-(\d+)")
_RANDOM = re.compile(r"rng_state_(\d+)\.pth")
_MODELS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
_SHARDED = re.compile(r"(?:pytorch_model_fsdp|optimizer)_\d+")


def _steps(store: Store) -> dict[str, int | None]:
    found = ((name, _STEP.fullmatch(name)) for name in store.folders())
    return {name: int(match[1]) for name, match in found if match}


def _faults(folder: Folder) -> list[DamagedFile]:
    if STATE not in folder.files:
        return [missing(STATE)]
    found = _state_faults(folder)
    below = {name: each for name, each in folder.folders.items() if _SHARDED.fullmatch(name)}
    for name, each in below.items():
        found += [DamagedFile(f"{name}/{fault.name}", fault.why) for fault in dcp.faults(each)]
    engine = {name: each for name, each in folder.folders.items() if name.startswith("global_step")}
    for name, each in engine.items():
        found += [DamagedFile(f"{name}/{fault.name}", fault.why) for fault in deepspeed.faults(each)]
    indexed = safetensors.faults(folder)
    has_model = any(name in folder.files for name in _MODELS) or bool(below) or bool(engine)
    if indexed is None and not has_model:
        found.append(missing(_MODELS[0]))
    ranks = {int(match[1]) for name in folder.files if (match := _RANDOM.fullmatch(name))}
    found += [missing(f"rng_state_{rank}.pth") for rank in range(max(ranks, default=0)) if rank not in ranks]
    return found + (indexed or [])


def _state_faults(folder: Folder) -> list[DamagedFile]:
    try:
        step = json.loads(folder.read(STATE))["global_step"]
    except (ValueError, KeyError, TypeError) as error:
        return [DamagedFile(STATE, f"it is damaged: {error!r}")]
    named = last_number(folder.name)
    return [] if step == named else [DamagedFile(STATE, f"is of step {step} instead of {named}")]


HUGGING_FACE = Reader(Format.HUGGING_FACE, _steps, _faults)
