# SPDX-License-Identifier: Apache-2.0
"""What each rank wrote of a checkpoint, who writes what, and the merge of all ranks' plans. Pure; JSON on disk.

Plans are the only thing that ranks tell each other about a save, so the merge trusts none of it: it demands that
every tensor is covered wholly and once, and refuses the commit otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpoint.api import CheckpointError
from checkpoint.manifest import FileRecord

Path = tuple[str | int, ...]  # dict keys and list indices

_SHOWN = 5


class PlanError(CheckpointError):
    """The ranks' plans do not make one whole checkpoint."""


@dataclass(frozen=True, slots=True)
class LeafPath:
    """Where a leaf stands in the state.

    `parts` are dict keys (str or int) and list indices (int); `lists` holds the places of `parts` that index a list,
    which tells 0 the index from 0 the key: PyTorch's own flattening turns the latter into "0" for good.
    """

    parts: Path
    lists: frozenset[int] = frozenset()

    def torch_path(self) -> Path:
        """The path as PyTorch's flattening spells it, for the metadata's planner_data."""
        return tuple(part if place in self.lists else str(part) for place, part in enumerate(self.parts))


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Kind of a whole tensor: dtype as `float32`, global size."""

    dtype: str
    size: tuple[int, ...]
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class WrittenItem:
    """One piece in a rank's file: a chunk of a tensor, or a pickled leaf (`offsets` and `sizes` are None)."""

    fqn: str
    file: str
    start: int
    length: int
    offsets: tuple[int, ...] | None = None
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank knows of the state and what it wrote of it; `error` says why it could not.

    `launch` and `serial` (the number of the save in this process) tell it from a plan that a dead process left.
    """

    launch: str
    serial: int
    rank: int
    world_size: int
    error: str = ""
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    tensors: Mapping[str, TensorFacts] = field(default_factory=dict)
    paths: Mapping[str, LeafPath] = field(default_factory=dict)
    items: Sequence[WrittenItem] = ()


@dataclass(frozen=True, slots=True)
class MergedPlan:
    """All ranks' plans as one."""

    files: Mapping[str, FileRecord]
    tensors: Mapping[str, TensorFacts]
    paths: Mapping[str, LeafPath]
    items: Sequence[WrittenItem]


def plan_name(rank: int) -> str:
    """Name of a rank's plan file in the folder that is being written."""
    return f"plan-{rank}.json"


def share_out(bytes_by_fqn: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Give each replicated tensor to one rank, largest first to the rank with the least so far.

    Every rank computes the same from the same state, so no collective is needed to agree.
    """
    loads = [0] * world_size
    owner = {}
    for fqn, size in sorted(bytes_by_fqn.items(), key=lambda each: (-each[1], each[0])):
        rank = min(range(world_size), key=lambda each: (loads[each], each))
        owner[fqn] = rank
        loads[rank] += size
    return owner


def merge(plans: Sequence[RankPlan]) -> MergedPlan:
    """Join the plans of all ranks.

    Raises:
        PlanError: a rank failed, ranks disagree on a tensor, or a part of the state was written by no rank or twice.
    """
    failed = [f"rank {plan.rank}: {plan.error}" for plan in plans if plan.error]
    if failed:
        raise PlanError(f"not every rank could write its part: {'; '.join(failed)}")
    tensors: dict[str, TensorFacts] = {}
    paths: dict[str, LeafPath] = {}
    files: dict[str, FileRecord] = {}
    for plan in plans:
        for fqn, facts in plan.tensors.items():
            if tensors.setdefault(fqn, facts) != facts:
                raise PlanError(f"ranks disagree on {fqn}: {tensors[fqn]} and, on rank {plan.rank}, {facts}")
        paths.update(plan.paths)
        files.update(plan.files)
    items = [item for plan in plans for item in plan.items]
    _demand_cover(tensors, paths, items)
    return MergedPlan(files=files, tensors=tensors, paths=paths, items=items)


def _demand_cover(
    tensors: Mapping[str, TensorFacts], paths: Mapping[str, LeafPath], items: Iterable[WrittenItem]
) -> None:
    written: dict[str, set[tuple[int, ...] | None]] = {}
    volume: dict[str, int] = {}
    for item in items:
        chunks = written.setdefault(item.fqn, set())
        if item.offsets in chunks:
            raise PlanError(f"two ranks wrote {item.fqn} at {item.offsets}: give ranks different keys")
        chunks.add(item.offsets)
        volume[item.fqn] = volume.get(item.fqn, 0) + math.prod(item.sizes or ())
    bad = [fqn for fqn in paths if fqn not in written]
    bad += [fqn for fqn, facts in tensors.items() if fqn in written and volume[fqn] != math.prod(facts.size)]
    if bad:
        shown = ", ".join(sorted(bad)[:_SHOWN])
        raise PlanError(
            f"{len(bad)} parts of the state were not written wholly ({shown}): every rank must hand in the same keys; "
            "parts that differ by rank must be DTensors or have a key of their own on every rank"
        )


def encode_plan(plan: RankPlan) -> bytes:
    """JSON of a plan; compact, since a large model has thousands of items."""
    content = {
        "launch": plan.launch,
        "serial": plan.serial,
        "rank": plan.rank,
        "world_size": plan.world_size,
        "error": plan.error,
        "files": {name: [each.bytes, each.xxh3] for name, each in plan.files.items()},
        "tensors": {fqn: [each.dtype, each.size, each.requires_grad] for fqn, each in plan.tensors.items()},
        "paths": plain_paths(plan.paths),
        "items": plain_items(plan.items),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_plan(payload: bytes) -> RankPlan:
    """Read a plan.

    Raises:
        ValueError: it is damaged.
    """
    try:
        content = json.loads(payload)
        return RankPlan(
            launch=content["launch"],
            serial=content["serial"],
            rank=content["rank"],
            world_size=content["world_size"],
            error=content["error"],
            files={name: FileRecord(size, xxh3) for name, (size, xxh3) in content["files"].items()},
            tensors={fqn: TensorFacts(d, tuple(size), grad) for fqn, (d, size, grad) in content["tensors"].items()},
            paths=_read_paths(content["paths"]),
            items=[
                WrittenItem(fqn, file, start, length, _maybe_tuple(offsets), _maybe_tuple(sizes))
                for fqn, file, start, length, offsets, sizes in content["items"]
            ],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing or of the wrong type: {error}") from error


def encode_paths(paths: Mapping[str, LeafPath]) -> bytes:
    """The structure file: how the state's dicts and lists are nested, with their keys' types."""
    return json.dumps(plain_paths(paths), separators=(",", ":")).encode()


def decode_paths(payload: bytes) -> dict[str, LeafPath]:
    """Read a structure file.

    Raises:
        ValueError: it is damaged.
    """
    return _read_paths(json.loads(payload))


def plain_items(items: Iterable[WrittenItem]) -> list[Any]:
    """Items as JSON has them."""
    return [[each.fqn, each.file, each.start, each.length, each.offsets, each.sizes] for each in items]


def plain_paths(paths: Mapping[str, LeafPath]) -> dict[str, Any]:
    """Paths as JSON has them."""
    return {fqn: [path.parts, sorted(path.lists)] for fqn, path in paths.items()}


def _read_paths(content: Mapping[str, Any]) -> dict[str, LeafPath]:
    return {fqn: LeafPath(tuple(parts), frozenset(lists)) for fqn, (parts, lists) in content.items()}


def _maybe_tuple(numbers: list[int] | None) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(numbers)
