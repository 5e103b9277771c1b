# SPDX-License-Identifier: Apache-2.0
"""Sharded models of safetensors or `pytorch_model.bin`: an index names the files that must be there.

The index is `*.index.json` with `weight_map` from tensor to file
(huggingface.co/docs/transformers/big_models, section Sharded checkpoints).
"""

from __future__ import annotations

import json

from checkpoint.api import DamagedFile
from checkpoint.foreign.folder import Folder
from checkpoint.foreign.found import missing

_SUFFIX = ".index.json"


def faults(folder: Folder) -> list[DamagedFile] | None:
    """The files that the indices name and that are not there; None when there is no index."""
    indices = [name for name in folder.files if name.endswith(_SUFFIX)]
    if not indices:
        return None
    found: list[DamagedFile] = []
    for index in indices:
        try:
            named = set(json.loads(folder.read(index))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            found.append(DamagedFile(index, f"it is damaged: {error!r}"))
        else:
            found += [missing(str(file)) for file in sorted(named, key=str) if file not in folder.files]
    return found
