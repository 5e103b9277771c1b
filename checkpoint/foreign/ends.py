# SPDX-License-Identifier: Apache-2.0
"""Tells files that were cut short by their ends, without reading what lies between.

`torch.save` writes a zip archive (since PyTorch 1.6, torch/serialization.py), whose directory stands at the end; a
safetensors file says in its head how long it is (github.com/huggingface/safetensors, section Format).
"""

from __future__ import annotations

import json
import struct

from checkpoint.api import DamagedFile
from checkpoint.foreign.folder import Folder

_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_ZIP_START = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22
_HEADER_MOST_BYTES = 100_000_000  # safetensors/src/tensor.rs: MAX_HEADER_SIZE


def cut_short(folder: Folder) -> list[DamagedFile]:
    """The files in this folder and below that show by themselves that they are not whole."""
    found = [DamagedFile(name, why) for name in sorted(folder.files) if (why := why_cut_short(folder, name))]
    for name, below in folder.folders.items():
        found += [DamagedFile(f"{name}/{each.name}", each.why) for each in cut_short(below)]
    return found


def why_cut_short(folder: Folder, name: str) -> str:
    """What a file's end says is wrong with it; empty when nothing is, or when its kind does not tell."""
    size = folder.files.get(name)
    if size is None:
        return "is missing"
    try:
        if name.endswith(".safetensors"):
            return _why_safetensors(folder, name, size)
        if name.endswith(_TORCH_SUFFIXES):
            return _why_torch(folder, name, size)
    except PermissionError:
        raise
    except OSError as error:
        return f"cannot be read: {error}"
    return ""


def _why_torch(folder: Folder, name: str, size: int) -> str:
    if size == 0:
        return "is empty"
    with folder.open(name) as stream:
        if stream.read(len(_ZIP_START)) != _ZIP_START:
            return ""  # An older kind, or not torch's; it does not tell.
        stream.seek(max(0, size - _ZIP_END_BYTES))
        return "" if stream.read().startswith(_ZIP_END) else "is cut short: the directory at its end is missing"


def _why_safetensors(folder: Folder, name: str, size: int) -> str:
    with folder.open(name) as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 0 < length <= min(_HEADER_MOST_BYTES, max(0, size - 8)):
            return "is cut short: its header is not whole"
        try:
            tensors = json.loads(stream.read(length))
            ends = [int(each["data_offsets"][1]) for key, each in tensors.items() if key != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "its header cannot be read"
    whole = 8 + length + max(ends, default=0)
    return "" if size == whole else f"has {size} bytes instead of {whole}"
