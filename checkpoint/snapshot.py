# SPDX-License-Identifier: Apache-2.0
"""The copy of the state that a save writes, in CPU buffers that are kept from save to save.

A rank copies only what it will write. No collective is used: replicated tensors are shared out by size, by the same
computation on every rank, and of a DTensor's replicas the first along each replicated mesh dimension writes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from checkpoint import rng
from checkpoint.api import CheckpointError
from checkpoint.flatten import RESERVED_KEY, Leaf, flatten_state
from checkpoint.plan import LeafPath, TensorFacts, share_out


@dataclass(frozen=True, slots=True)
class Chunk:
    """One rectangular piece of a tensor: `values` lies at `offsets` of the whole."""

    fqn: str
    offsets: tuple[int, ...]
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What this rank knows of the state (`tensors`, `paths`) and what it will write (`chunks`, `pickled`)."""

    tensors: Mapping[str, TensorFacts]
    paths: Mapping[str, LeafPath]
    chunks: list[Chunk]
    pickled: Mapping[str, bytes]


class Snapshotter:
    """Copies states; owns the buffers. A snapshot is overwritten by the next one."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, state: Mapping[str, object]) -> Snapshot:
        """Copy this rank's share of the state and its random state; returns when the copy is complete.

        Raises:
            CheckpointError: a value cannot be saved; the message names its key.
        """
        leaves = flatten_state(state)
        values = {name: leaf.value for name, leaf in leaves.items() if isinstance(leaf.value, torch.Tensor)}
        replicated = {n: v.numel() * v.element_size() for n, v in values.items() if not isinstance(v, DTensor)}
        owner = share_out(replicated, self._world_size)
        chunks = []
        for name, value in values.items():
            source = _own_shard(value) if isinstance(value, DTensor) else _plain(name, value, owner[name] == self._rank)
            if source is not None:
                chunks.append(Chunk(name, source[0], self._copy(name, source[1])))
        pickled = self._pickle(leaves)
        paths = {name: leaf.path for name, leaf in leaves.items()}
        random_path = LeafPath((RESERVED_KEY, str(self._rank)))
        random_fqn = f"{RESERVED_KEY}.{self._rank}"
        paths[random_fqn] = random_path
        pickled[random_fqn] = _dump(random_fqn, rng.capture())
        if any(chunk.values.is_pinned() for chunk in chunks):
            torch.cuda.synchronize()
        facts = {name: _facts(value) for name, value in values.items()}
        return Snapshot(tensors=facts, paths=paths, chunks=chunks, pickled=pickled)

    def release(self) -> None:
        """Give the buffers back."""
        self._buffers.clear()

    def _pickle(self, leaves: Mapping[str, Leaf]) -> dict[str, bytes]:
        """Values that are not tensors are the same on every rank, so the first one writes them."""
        if self._rank != 0:
            return {}
        return {
            name: _dump(name, leaf.value) for name, leaf in leaves.items() if not isinstance(leaf.value, torch.Tensor)
        }

    def _copy(self, name: str, source: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != source.shape or buffer.dtype != source.dtype:
            buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
            self._buffers[name] = buffer
        buffer.copy_(source, non_blocking=source.is_cuda)
        return buffer


def _plain(name: str, value: torch.Tensor, is_mine: bool) -> tuple[tuple[int, ...], torch.Tensor] | None:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise CheckpointError(
            f"state: {name} is a {value.layout} tensor on {value.device}; only dense ones with values can be saved"
        )
    return ((0,) * value.dim(), value.detach()) if is_mine else None


def _own_shard(value: DTensor) -> tuple[tuple[int, ...], torch.Tensor] | None:
    coordinate = value.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    replicas = [at for at, placement in zip(coordinate, value.placements, strict=True) if placement.is_replicate()]
    local: torch.Tensor = value.to_local().detach()
    if any(replicas) or (local.numel() == 0 and value.numel() != 0):
        return None
    (chunk,) = value.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return tuple(chunk.offsets), local


def _facts(value: torch.Tensor) -> TensorFacts:
    return TensorFacts(str(value.dtype).removeprefix("torch."), tuple(value.shape), value.requires_grad)


def _dump(name: str, value: object) -> bytes:
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"state: {name} of type {type(value).__name__} cannot be pickled: {error}") from error
    return stream.getvalue()
