# SPDX-License-Identifier: Apache-2.0
"""What a slab says about the save that it holds: everything that persisting and committing it takes, as JSON.

Two lines: one that each save writes, and one, long for a large model, that stays as long as the layout does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkpoint.api import CheckpointRef
from checkpoint.plan import LeafPath, RankPlan, TensorFacts, WrittenItem, decode_plan, plain_items, plain_paths


@dataclass(frozen=True, slots=True)
class Notes:
    """What the manifest says beside the state itself."""

    run: str
    position: int | None
    skipped: tuple[tuple[int, int], ...]
    healthy: bool | None


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """One rank's save; `plan` still lacks the file's size and checksum."""

    ref: CheckpointRef
    notes: Notes
    plan: RankPlan


def file_of(rank: int) -> str:
    """Name of a rank's data file, as PyTorch's FileSystemWriter has it."""
    return f"__{rank}_0.distcp"


def encode_outline(
    tensors: Mapping[str, TensorFacts], paths: Mapping[str, LeafPath], items: Sequence[WrittenItem]
) -> bytes:
    """The line that stays while the layout does."""
    facts = {fqn: [each.dtype, each.size, each.requires_grad] for fqn, each in tensors.items()}
    content = {"tensors": facts, "paths": plain_paths(paths), "items": plain_items(items)}
    return json.dumps(content, separators=(",", ":")).encode()


def encode_record(ref: CheckpointRef, notes: Notes, plan: RankPlan, outline: bytes) -> bytes:
    """Both lines; of the plan, only who wrote it and the items of this save that the outline lacks."""
    content = {
        "ref": [ref.step, ref.attempt],
        "notes": [notes.run, notes.position, notes.skipped, notes.healthy],
        "launch": plan.launch,
        "serial": plan.serial,
        "rank": plan.rank,
        "world_size": plan.world_size,
        "items": plain_items(plan.items),
    }
    return json.dumps(content, separators=(",", ":")).encode() + b"\n" + outline


def serial_of(payload: bytes) -> int | None:
    """The number of the save alone; None when the record is damaged."""
    try:
        return int(json.loads(payload.partition(b"\n")[0])["serial"])
    except (ValueError, KeyError, TypeError):
        return None


def decode_record(payload: bytes) -> SaveRecord:
    """Read a record.

    Raises:
        ValueError: it is damaged.
    """
    first, _, second = payload.partition(b"\n")
    try:
        own, outline = json.loads(first), json.loads(second)
        step, attempt = own["ref"]
        run, position, skipped, healthy = own["notes"]
        items = [*own.pop("items"), *outline.pop("items")]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing or of the wrong type: {error}") from error
    plan = decode_plan(json.dumps({**own, **outline, "items": items, "files": {}, "error": ""}).encode())
    notes = Notes(run, position, tuple((start, end) for start, end in skipped), healthy)
    return SaveRecord(CheckpointRef(step, attempt), notes, plan)
