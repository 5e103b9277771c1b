# SPDX-License-Identifier: Apache-2.0
"""What a rank has to copy of a state: which pieces of which tensors, and the pickled rest.

A rank copies only what it will write. No collective is used: replicated tensors are shared out by size, by the same
computation on every rank, and of a DTensor's replicas the first along each replicated mesh dimension writes. All of
that depends on names and kinds alone, so it is computed anew only when those have changed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from checkpoint import rng
from checkpoint.api import CheckpointError
from checkpoint.flatten import RESERVED_KEY, Leaf, flatten_state
from checkpoint.plan import LeafPath, TensorFacts, share_out


@dataclass(frozen=True, slots=True)
class Piece:
    """One rectangular piece of a tensor that this rank writes; it lies at `offsets` of the whole."""

    fqn: str
    offsets: tuple[int, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """What this rank knows of the state (`tensors`, `paths`) and which tensors it writes (`pieces`)."""

    tensors: Mapping[str, TensorFacts]
    paths: Mapping[str, LeafPath]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Sight:
    """A state as it is seen for one save.

    `outline` is the very same object as long as names and kinds stay; `sources` are the live tensors of its pieces;
    `pickled` has the values that are not tensors, and this rank's random state.
    """

    outline: Outline
    sources: list[torch.Tensor]
    pickled: Mapping[str, bytes]


class Surveyor:
    """Looks at states; keeps the last outline."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._kinds: list[object] = []
        self._outline = Outline({}, {}, ())
        self._dumped: dict[str, tuple[bytes, bytes]] = {}
        self._offsets: dict[object, tuple[int, ...]] = {}

    def look(self, state: Mapping[str, object]) -> Sight:
        """Find out what to copy; the tensors themselves are not read.

        Raises:
            CheckpointError: a value cannot be saved; the message names its key.
        """
        leaves = flatten_state(state)
        kinds: list[object] = [_kind(name, leaf) for name, leaf in leaves.items()]
        if kinds != self._kinds:
            self._outline = self._survey(leaves)
            self._kinds = kinds
        with torch.no_grad():
            sources = [_local(leaves[piece.fqn].value) for piece in self._outline.pieces]
        return Sight(self._outline, sources, self._pickle(leaves))

    def _survey(self, leaves: Mapping[str, Leaf]) -> Outline:
        values = {name: leaf.value for name, leaf in leaves.items() if isinstance(leaf.value, torch.Tensor)}
        replicated = {n: v.numel() * v.element_size() for n, v in values.items() if not isinstance(v, DTensor)}
        owner = share_out(replicated, self._world_size)
        pieces = []
        for name, value in values.items():
            if isinstance(value, DTensor):
                piece = self._shard(name, value)
            else:
                piece = _whole(name, value) if owner[name] == self._rank else None
            if piece is not None:
                pieces.append(piece)
        paths = {name: leaf.path for name, leaf in leaves.items()}
        paths[f"{RESERVED_KEY}.{self._rank}"] = LeafPath((RESERVED_KEY, str(self._rank)))
        return Outline({name: _facts(value) for name, value in values.items()}, paths, tuple(pieces))

    def _shard(self, name: str, value: DTensor) -> Piece | None:
        coordinate = value.device_mesh.get_coordinate()
        if coordinate is None:
            return None
        replicas = [at for at, placement in zip(coordinate, value.placements, strict=True) if placement.is_replicate()]
        local = _local(value)
        if any(replicas) or (local.numel() == 0 and value.numel() != 0):
            return None
        key = (value.device_mesh, value.placements, value.shape, value.stride())
        if key not in self._offsets:
            (chunk,) = value.__create_chunk_list__()  # type: ignore[no-untyped-call]
            self._offsets[key] = tuple(chunk.offsets)
        return Piece(name, self._offsets[key], local.dtype, tuple(local.shape))

    def _pickle(self, leaves: Mapping[str, Leaf]) -> dict[str, bytes]:
        """Values that are not tensors are the same on every rank, so the first one writes them."""
        pickled = {}
        if self._rank == 0:
            for name, leaf in leaves.items():
                if not isinstance(leaf.value, torch.Tensor):
                    pickled[name] = self._dump_once(name, leaf.value)
        random_fqn = f"{RESERVED_KEY}.{self._rank}"
        pickled[random_fqn] = _dump(random_fqn, rng.capture())
        return pickled

    def _dump_once(self, name: str, value: object) -> bytes:
        """The `torch.save` stream of a value, made anew only if the value has changed: plain pickle tells that fast."""
        try:
            fingerprint = pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
            return _dump(name, value)
        known = self._dumped.get(name)
        if known is None or known[0] != fingerprint:
            known = self._dumped[name] = (fingerprint, _dump(name, value))
        return known[1]


def _kind(name: str, leaf: Leaf) -> tuple[object, ...]:
    """Everything of a leaf that an outline depends on."""
    value: Any = leaf.value
    path = leaf.path
    if not isinstance(value, torch.Tensor):
        return name, path.parts, path.lists
    kind = (name, path.parts, path.lists, value.dtype, value.shape, value.requires_grad, value.layout, value.device)
    return (*kind, value.placements, value.device_mesh) if isinstance(value, DTensor) else kind


def _local(value: Any) -> torch.Tensor:
    local: torch.Tensor = value.to_local() if isinstance(value, DTensor) else value
    return local.detach()


def _whole(name: str, value: torch.Tensor) -> Piece:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise CheckpointError(
            f"state: {name} is a {value.layout} tensor on {value.device}; only dense ones with values can be saved"
        )
    return Piece(name, (0,) * value.dim(), value.dtype, tuple(value.shape))


def _facts(value: torch.Tensor) -> TensorFacts:
    return TensorFacts(str(value.dtype).removeprefix("torch."), tuple(value.shape), value.requires_grad)


def _dump(name: str, value: object) -> bytes:
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"state: {name} of type {type(value).__name__} cannot be pickled: {error}") from error
    return stream.getvalue()
