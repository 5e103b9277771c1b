# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed: a folder for each tag, `global_step1000/` by default, and `latest`, which is written when a save ended.

Names as in deepspeed/runtime/engine.py (`_get_ckpt_name`, `_get_zero_ckpt_name`, `save_checkpoint`): each
model-parallel rank's `mp_rank_MM_model_states.pt`, which says how many data-parallel ranks there are, and with ZeRO
`[bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt` of each of them; ZeRO 3 also partitions the model's file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from checkpoint.api import DamagedFile, Store
from checkpoint.foreign.folder import Folder
from checkpoint.foreign.found import Format, Reader, last_number, missing, read_text
from checkpoint.foreign.inert import number, read_torch_file

LATEST = "latest"
_STEP = re.compile(r"global_step\d+")
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_PARTITIONED = re.compile(r"(?P<kind>(?:\w+_)?zero_pp_rank_)(?P<data>\d+)_mp_rank_(?P<model>\d+)_(?P<what>\w+)\.pt")


def _steps(store: Store) -> dict[str, int | None]:
    tag = read_text(store, LATEST)
    return {name: last_number(name) for name in store.folders() if _STEP.fullmatch(name) or name == tag}


def _newest(store: Store) -> int | None:
    """None where the run was told not to write the file (`save_latest=False`)."""
    return last_number(read_text(store, LATEST) or "")


def faults(folder: Folder) -> list[DamagedFile]:
    """See `found.Reader`."""
    models = [name for name in sorted(folder.files) if _MODEL.fullmatch(name)]
    partitioned = [match for name in folder.files if (match := _PARTITIONED.fullmatch(name))]
    described = models or sorted(match[0] for match in partitioned if match["what"] == "model_states")
    if not described:
        return [missing("mp_rank_00_model_states.pt")]
    try:
        with folder.open(described[0]) as stream:
            facts = read_torch_file(stream)
    except ValueError as error:
        return [DamagedFile(described[0], str(error))]
    found = _missing_models(models, number(facts, "mp_world_size") or 1) if models else []
    return found + _missing_parts(partitioned, number(facts, "dp_world_size"))


def _missing_models(models: Iterable[str], least: int) -> list[DamagedFile]:
    ranks = {int(match[1]) for name in models if (match := _MODEL.fullmatch(name))}
    count = max(least, max(ranks) + 1)
    return [missing(f"mp_rank_{rank:02d}_model_states.pt") for rank in range(count) if rank not in ranks]


def _missing_parts(parts: list[re.Match[str]], data_ranks: int | None) -> list[DamagedFile]:
    """Every kind of partitioned file must be there for each data-parallel rank of each model-parallel one."""
    present = {part[0] for part in parts}
    kinds = sorted({(part["kind"], part["what"]) for part in parts})
    needed = []
    for kind, what in kinds:
        same = [part for part in parts if (part["kind"], part["what"]) == (kind, what)]
        count = data_ranks or max(int(part["data"]) for part in same) + 1
        models = sorted({part["model"] for part in same})
        needed += [f"{kind}{data}_mp_rank_{model}_{what}.pt" for model in models for data in range(count)]
    return [missing(name) for name in needed if name not in present]


DEEPSPEED = Reader(Format.DEEPSPEED, _steps, faults, _newest)
