# SPDX-License-Identifier: Apache-2.0
"""Phase two of a commit, on rank 0: wait for all plans, merge them, write the metadata and the manifest, rename.

    ranks   step-N-aA.tmp/ : __0_0.distcp              __1_0.distcp plan-1.json       (each fsynced, phase one)
    rank 0  .metadata, structure.json, manifest.json -> fence still ours? -> rename to step-N-aA/ -> fsync of the parent

A crash anywhere leaves only a folder that does not count. `.metadata` is a pickle because PyTorch's format says so:
it makes the store as trusted as code.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping

import torch
import xxhash
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from checkpoint.api import CheckpointError, CheckpointRef, Store
from checkpoint.lineage import folder_of, partial_folder_of
from checkpoint.manifest import MANIFEST, METADATA, STRUCTURE, FileRecord, Manifest, encode_manifest
from checkpoint.plan import MergedPlan, RankPlan, TensorFacts, WrittenItem, decode_plan, encode_paths, merge, plan_name
from checkpoint.record import Notes


def gather_plans(store: Store, ref: CheckpointRef, own: RankPlan, known: dict[int, RankPlan]) -> None:
    """Add to the known plans, by rank, those of this very save that have come."""
    folder = partial_folder_of(ref)
    known[own.rank] = own
    if len(known) == own.world_size:
        return
    there = store.files(folder)
    for rank in range(own.world_size):
        if rank not in known and plan_name(rank) in there and (plan := _read_plan(store, folder, rank, own)):
            known[rank] = plan


def publish(
    store: Store, ref: CheckpointRef, plans: list[RankPlan], notes: Notes, *, fence_holds: Callable[[], None]
) -> Manifest:
    """Make the checkpoint visible.

    Args:
        fence_holds: called right before the rename; raises when a newer attempt has taken over.

    Raises:
        PlanError: the plans do not make one whole checkpoint.
        CheckpointError: a file that they name is gone.
        OSError: the store could not take it.
    """
    merged = merge(plans)
    folder = partial_folder_of(ref)
    added = {
        METADATA: pickle.dumps(build_metadata(merged, save_id=f"{ref.step}-{ref.attempt}")),
        STRUCTURE: encode_paths(merged.paths),
    }
    files = dict(merged.files)
    _demand_files(store, folder, files)
    for name, payload in added.items():
        store.write(f"{folder}/{name}", payload)
        files[name] = FileRecord(len(payload), xxhash.xxh3_128_hexdigest(payload))
    manifest = Manifest(
        run=notes.run,
        attempt=ref.attempt,
        step=ref.step,
        world_size=len(plans),
        position=notes.position,
        skipped=notes.skipped,
        healthy=notes.healthy,
        created_at=time.time(),
        files=files,
    )
    store.write(f"{folder}/{MANIFEST}", encode_manifest(manifest))
    for name in store.files(folder).keys() - files.keys() - {MANIFEST}:
        store.remove(f"{folder}/{name}")
    fence_holds()
    store.rename(folder, folder_of(ref))
    return manifest


def _demand_files(store: Store, folder: str, files: Mapping[str, FileRecord]) -> None:
    """What the plans name must still be there: another process may have cleaned up meanwhile."""
    there = store.files(folder)
    gone = [name for name, record in files.items() if there.get(name) != record.bytes]
    if gone:
        raise CheckpointError(f"{folder} has lost {', '.join(sorted(gone))} before the commit")


def build_metadata(merged: MergedPlan, *, save_id: str) -> Metadata:
    """PyTorch's description of the checkpoint: each leaf's kind and chunks, and where each chunk lies."""
    described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for item in merged.items:
        index = MetadataIndex(item.fqn, item.offsets)
        places[index] = _StorageInfo(item.file, item.start, item.length)
        if item.offsets is None or item.sizes is None:
            described[item.fqn] = BytesStorageMetadata()
            continue
        entry = described.setdefault(item.fqn, _empty_tensor(merged.tensors, item))
        if isinstance(entry, TensorStorageMetadata):
            entry.chunks.append(ChunkStorageMetadata(torch.Size(item.offsets), torch.Size(item.sizes)))
    return Metadata(
        state_dict_metadata=described,
        planner_data={fqn: path.torch_path() for fqn, path in merged.paths.items()},
        storage_data=places,
        storage_meta=StorageMeta(save_id=save_id),
        version=CURRENT_DCP_VERSION,
    )


def dtype_of(facts: TensorFacts) -> torch.dtype:
    """The dtype that a plan names.

    Raises:
        CheckpointError: this PyTorch has no such dtype.
    """
    dtype = getattr(torch, facts.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"this PyTorch has no dtype {facts.dtype!r}")
    return dtype


def _empty_tensor(tensors: Mapping[str, TensorFacts], item: WrittenItem) -> TensorStorageMetadata:
    facts = tensors[item.fqn]
    properties = TensorProperties(dtype=dtype_of(facts), requires_grad=facts.requires_grad)
    return TensorStorageMetadata(properties, torch.Size(facts.size), [])


def _read_plan(store: Store, folder: str, rank: int, own: RankPlan) -> RankPlan | None:
    try:
        plan = decode_plan(store.read(f"{folder}/{plan_name(rank)}"))
    except FileNotFoundError:
        return None
    expected = (own.launch, own.serial, rank, own.world_size)
    return plan if (plan.launch, plan.serial, plan.rank, plan.world_size) == expected else None
