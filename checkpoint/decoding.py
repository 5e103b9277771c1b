# SPDX-License-Identifier: Apache-2.0
"""Puts the pieces of a checkpoint's files into tensors, as PyTorch's load planner wants them.

Pieces come unverified. Those of tensors are only copied; pickled values wait until all bytes are known to be right.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from checkpoint.api import CheckpointError
from checkpoint.layout import Envelopes
from checkpoint.passing import Extent

_UNREADABLE = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, EOFError, OSError, pickle.PickleError)
"""What a stream that is not one of `torch.save` makes `torch.load` raise."""


def extents_by_file(metadata: Metadata) -> dict[str, list[Extent]]:
    """Every piece of every file, by place."""
    found: dict[str, set[Extent]] = {}
    for place in metadata.storage_data.values():
        found.setdefault(place.relative_path, set()).add(Extent(place.offset, place.length))
    return {file: sorted(extents) for file, extents in found.items()}


class Decoder:
    """Fills `values`: tensors are filled in place, None is replaced by what was pickled.

    Those in `replaceable` may be replaced by tensors that refer to bytes which last.
    """

    def __init__(self, metadata: Metadata, values: dict[str, Any], replaceable: Collection[str] = ()) -> None:
        self._values = values
        self._replaceable = replaceable
        self._metadata = metadata
        self._planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._planner.set_up_planner(values, metadata, is_coordinator=True)
        self._wanted: dict[tuple[str, Extent], list[ReadItem]] = {}
        self._pickled: list[tuple[ReadItem, bytes]] = []
        self._chunks: dict[tuple[str, tuple[int, ...]], tuple[torch.dtype, tuple[int, ...]]] = {}
        self._envelopes = Envelopes()
        self._trouble: list[str] = []
        for item in self._planner.create_local_plan().items:
            place = metadata.storage_data[item.storage_index]
            key = (place.relative_path, Extent(place.offset, place.length))
            self._wanted.setdefault(key, []).append(item)
        for fqn in {item.storage_index.fqn for items in self._wanted.values() for item in items}:
            self._note_chunks(fqn)

    def needs(self) -> dict[str, list[Extent]]:
        """The pieces of each file that `values` are made of."""
        found: dict[str, list[Extent]] = {}
        for file, extent in self._wanted:
            found.setdefault(file, []).append(extent)
        return found

    def take(self, file: str, extent: Extent, payload: memoryview, lasts: bool) -> None:
        """Use a piece of a file; never raises, since other ranks count on this one."""
        for item in self._wanted[file, extent]:
            if item.type is LoadItemType.BYTE_IO:
                self._pickled.append((item, bytes(payload)))
                continue
            try:
                tensor = self._tensor(item, payload)
                if lasts and self._is_all_of(item, tensor):
                    self._values[item.storage_index.fqn] = tensor
                else:
                    self._place(item, tensor)
            except _UNREADABLE as error:
                self._trouble.append(f"{item.storage_index.fqn} in {file}: {error}")

    def finish(self) -> None:
        """Unpickle what was pickled, now that all bytes are verified.

        Raises:
            CheckpointError: a piece is not what the metadata says, though its bytes are those that were saved.
        """
        for item, payload in self._pickled:
            try:
                self._planner.load_bytes(item, io.BytesIO(payload))
            except _UNREADABLE as error:
                self._trouble.append(f"{item.storage_index.fqn}: {error}")
        if self._trouble:
            raise CheckpointError(f"the checkpoint is whole, but this PyTorch cannot read it: {self._trouble[0]}")

    def _note_chunks(self, fqn: str) -> None:
        described = self._metadata.state_dict_metadata[fqn]
        if isinstance(described, TensorStorageMetadata):
            for chunk in described.chunks:
                self._chunks[fqn, tuple(chunk.offsets)] = described.properties.dtype, tuple(chunk.sizes)

    def _tensor(self, item: ReadItem, payload: memoryview) -> torch.Tensor:
        """The tensor of a stream; where it is as we write it, the very bytes in it and no copy."""
        index = item.storage_index
        dtype, shape = self._chunks[index.fqn, tuple(index.offset or ())]
        envelope = self._envelopes.of(dtype, shape)
        start = len(envelope.head)
        if envelope.room and len(payload) == envelope.length and payload[:start] == envelope.head:
            values = torch.frombuffer(payload[start : start + envelope.room], dtype=torch.uint8)
            return values.view(dtype).view(shape)
        loaded: torch.Tensor = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        return loaded

    def _is_all_of(self, item: ReadItem, tensor: torch.Tensor) -> bool:
        """Whether a tensor may stand for the whole value."""
        fqn = item.storage_index.fqn
        return fqn in self._replaceable and tensor.shape == self._values[fqn].shape == item.lengths

    def _place(self, item: ReadItem, chunk: torch.Tensor) -> None:
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            chunk = chunk.narrow(dim, start, length)
        target = self._planner.resolve_tensor(item).detach()
        target.copy_(chunk)
        self._planner.commit_tensor(item, target)
