# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM: `iter_0001000/` folders, and `latest_checkpointed_iteration.txt`, which is written when a save ended.

Names as in megatron/training/checkpointing.py (`get_checkpoint_name`, `get_checkpoint_tracker_filename`): in the older
layout each model-parallel rank has a folder `mp_rank_TP[_PP[_EP]]` with `model_optim_rng.pt`; in the newer one the
folder is a distributed checkpoint with `metadata.json` (megatron/core/dist_checkpointing/core.py) and `common.pt`.
"""

from __future__ import annotations

import json
import math
import re

from checkpoint.api import DamagedFile, Store
from checkpoint.foreign import dcp
from checkpoint.foreign.folder import Folder
from checkpoint.foreign.found import Format, Reader, missing, read_text
from checkpoint.manifest import METADATA

TRACKER = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"iter_(\d+)")
_RANK = re.compile(r"mp_rank_\d+(?:_\d+){0,2}")
_STATE = "model_optim_rng.pt"
_DESCRIPTION = "metadata.json"
_SHARED = "common.pt"


def _steps(store: Store) -> dict[str, int | None]:
    found = ((name, _STEP.fullmatch(name)) for name in store.folders())
    return {name: int(match[1]) for name, match in found if match}


def _newest(store: Store) -> int | None:
    """Without the tracker no save has ended, and Megatron itself would begin anew."""
    text = read_text(store, TRACKER)
    if text is not None and text.isdecimal():
        return int(text)
    return -1


def _faults(folder: Folder) -> list[DamagedFile]:
    ranks = {name: below for name, below in folder.folders.items() if _RANK.fullmatch(name)}
    if ranks:
        return _older_faults(ranks)
    if _DESCRIPTION not in folder.files and METADATA not in folder.files:
        return [missing(_DESCRIPTION)]
    try:
        backend = json.loads(folder.read(_DESCRIPTION)) if _DESCRIPTION in folder.files else {}
    except ValueError as error:
        return [DamagedFile(_DESCRIPTION, f"it is damaged: {error}")]
    is_dcp = not isinstance(backend, dict) or backend.get("sharded_backend", "torch_dist") != "zarr"
    found = dcp.faults(folder) if is_dcp else []
    if _DESCRIPTION in folder.files and _SHARED not in folder.files:
        found.append(missing(_SHARED))
    return found


def _older_faults(ranks: dict[str, Folder]) -> list[DamagedFile]:
    """Every rank of the grid of parallel dimensions must be there, and hold what any of them holds."""
    places = [tuple(int(part) for part in name.split("_")[2:]) for name in ranks]
    sizes = [max(part) + 1 for part in zip(*places, strict=False)]
    if math.prod(sizes) != len(ranks):
        whole = " x ".join(str(size) for size in sizes)
        return [DamagedFile("mp_rank_*", f"are {len(ranks)} folders instead of {whole}")]
    needed = {_STATE, *(file for folder in ranks.values() for file in folder.files if file == "distrib_optim.pt")}
    return [
        missing(f"{name}/{file}")
        for name, folder in sorted(ranks.items())
        for file in sorted(needed)
        if file not in folder.files
    ]


MEGATRON = Reader(Format.MEGATRON, _steps, _faults, _newest)
