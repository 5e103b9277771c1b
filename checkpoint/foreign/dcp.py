# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch distributed checkpoints and torchtitan's: a folder with `.metadata`, which is written last.

`.metadata` is a pickle that names each piece's file, offset and length (torch/distributed/checkpoint/filesystem.py,
`_StorageInfo`), so that sizes can be compared. torchtitan names its folders `step-N` and may leave
`model.safetensors.index.json` instead (torchtitan/components/checkpoint.py, `_find_load_step`).
"""

from __future__ import annotations

import re

from checkpoint.api import DamagedFile, Store
from checkpoint.foreign import safetensors
from checkpoint.foreign.folder import Folder
from checkpoint.foreign.found import Format, Reader, last_number, missing
from checkpoint.foreign.inert import field, number, read_pickle
from checkpoint.lineage import ref_of
from checkpoint.manifest import MANIFEST, METADATA

_TITAN = re.compile(r"step-(\d+)")
_OTHERS = re.compile(r"iter_\d+|global_step\d+|checkpoint-\d+|release")
_PART = re.compile(r"__\d+_\d+\.distcp")


def faults(folder: Folder) -> list[DamagedFile]:
    """Files that are missing or shorter than the metadata says; see `found.Reader`."""
    if METADATA not in folder.files:
        indexed = safetensors.faults(folder)
        return [missing(METADATA)] if indexed is None else indexed
    try:
        metadata = read_pickle(folder.read(METADATA))
    except ValueError as error:
        return [DamagedFile(METADATA, str(error))]
    needed = _needed(metadata)
    if needed is None:
        return [DamagedFile(METADATA, "does not say which files there are")]
    sizes = folder.files if all("/" not in file for file in needed) else folder.all_files()
    found = []
    for file, least in sorted(needed.items()):
        if file not in sizes:
            found.append(missing(file))
        elif sizes[file] < least:
            found.append(DamagedFile(file, f"has {sizes[file]} bytes instead of at least {least}"))
    return found


def _needed(metadata: object) -> dict[str, int] | None:
    """The least size in bytes of each file that the metadata names."""
    places = field(metadata, "storage_data")
    if not isinstance(places, dict):
        return None
    needed: dict[str, int] = {}
    for place in places.values():
        file, offset, length = field(place, "relative_path"), number(place, "offset"), number(place, "length")
        if not isinstance(file, str) or offset is None or length is None:
            return None
        needed[file] = max(needed.get(file, 0), offset + length)
    return needed


def _titan_steps(store: Store) -> dict[str, int | None]:
    found = ((name, _TITAN.fullmatch(name)) for name in store.folders())
    return {name: int(match[1]) for name, match in found if match}


def _plain_steps(store: Store) -> dict[str, int | None]:
    """The store itself, or what other folders in it look like a distributed checkpoint, a half-written one too."""
    if _looks_like_one(store.files("")):
        return {"": last_number(store.location.rstrip("/").rpartition("/")[2])}
    names = [
        name
        for name in store.folders()
        if not (ref_of(name) or _TITAN.fullmatch(name) or _OTHERS.fullmatch(name)) and last_number(name) is not None
    ]
    return {name: last_number(name) for name in names if _looks_like_one(store.files(name))}


def _looks_like_one(files: dict[str, int]) -> bool:
    return MANIFEST not in files and any(file == METADATA or _PART.fullmatch(file) for file in files)


TORCHTITAN = Reader(Format.TORCHTITAN, _titan_steps, faults)
PLAIN = Reader(Format.DCP, _plain_steps, faults)
