# SPDX-License-Identifier: Apache-2.0
"""Load a verified checkpoint into the user's objects.

Everything is read into fresh tensors and compared before the first object changes, so that a state that does not fit,
or a store that fails while it is read, leaves all of them as they were.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from checkpoint import rng
from checkpoint.api import CheckpointRef, StateMismatchError, Store
from checkpoint.flatten import RESERVED_KEY, Leaf, assign, flatten, materialize, unflatten
from checkpoint.lineage import folder_of
from checkpoint.manifest import METADATA, STRUCTURE
from checkpoint.plan import LeafPath, decode_paths

_SHOWN = 5


def load(store: Store, ref: CheckpointRef, state: dict[str, Any], *, rank: int) -> bool:
    """Restore a state in place, then this rank's random state; False when the checkpoint has none for this rank.

    Raises:
        StateMismatchError: the checkpoint does not fit; nothing was changed.
        OSError: the store failed; nothing was changed.
    """
    folder = folder_of(ref)
    metadata: Metadata = pickle.loads(store.read(f"{folder}/{METADATA}"))  # noqa: S301 - the format; see `commit`
    paths = decode_paths(store.read(f"{folder}/{STRUCTURE}"))
    current = {key: materialize(key, value) for key, value in state.items()}
    templates = _templates(metadata, paths, state, current)
    random_fqn = f"{RESERVED_KEY}.{rank}"
    if random_fqn in metadata.state_dict_metadata:
        templates[random_fqn] = None
    values = _read(store, folder, metadata, templates)
    random_state = values.pop(random_fqn, None)
    leaves: dict[str, list[Leaf]] = {key: [] for key in state}
    for fqn, value in values.items():
        leaves[str(paths[fqn].parts[0])].append(Leaf(paths[fqn], value))
    loaded = {key: unflatten(each) for key, each in leaves.items() if isinstance(state[key], Stateful)}
    _demand_same_groups(state, current, loaded)
    _apply(state, current, loaded, leaves)
    if isinstance(random_state, dict):
        rng.reinstate(random_state)
    return random_state is not None


def _templates(
    metadata: Metadata, paths: Mapping[str, LeafPath], state: Mapping[str, object], current: Mapping[str, object]
) -> dict[str, torch.Tensor | None]:
    """A tensor to read into for each tensor of the checkpoint, None for each pickled leaf; the state must fit."""
    expected: dict[str, object] = {}
    is_strict = {}
    for key, value in state.items():
        is_strict[key] = isinstance(value, torch.nn.Module) or not isinstance(value, Stateful)
        expected.update({fqn: leaf.value for fqn, leaf in flatten(key, current[key]).items()})
    saved = {fqn: path for fqn, path in paths.items() if path.parts[0] != RESERVED_KEY}
    saved_keys = {str(path.parts[0]) for path in saved.values()}
    missing = [key for key in state if key not in saved_keys]
    missing += [fqn for fqn in expected if fqn not in saved and is_strict[_top(fqn, state)]]
    unexpected = [fqn for fqn, path in saved.items() if fqn not in expected and is_strict.get(str(path.parts[0]), True)]
    shapes = [
        why for fqn in saved if is_strict.get(str(saved[fqn].parts[0])) and (why := _misfit(fqn, metadata, expected))
    ]
    if missing or unexpected or shapes:
        raise StateMismatchError(_mismatch(missing, unexpected, shapes))
    return {fqn: _template(fqn, path, metadata, state, expected) for fqn, path in saved.items()}


def _top(fqn: str, state: Mapping[str, object]) -> str:
    """The top-level key of a leaf's name; keys may hold dots themselves, so the longest that fits."""
    return max((key for key in state if fqn == key or fqn.startswith(f"{key}.")), key=len)


def _template(
    fqn: str, path: LeafPath, metadata: Metadata, state: Mapping[str, object], expected: Mapping[str, object]
) -> torch.Tensor | None:
    described = metadata.state_dict_metadata[fqn]
    if not isinstance(described, TensorStorageMetadata):
        return None
    like = expected.get(fqn)
    if not isinstance(like, DTensor):
        like = _parameter_of(path, state)
    if isinstance(like, DTensor) and like.shape == described.size:
        return torch.empty_like(like, dtype=described.properties.dtype, requires_grad=False)
    return torch.empty(described.size, dtype=described.properties.dtype)


def _parameter_of(path: LeafPath, state: Mapping[str, object]) -> object:
    """The parameter whose optimizer state stands at a path; a fresh optimizer has no state that tells its sharding."""
    optimizer = state.get(str(path.parts[0]))
    match path.parts[1:]:
        case ("state", int(index), str()) if isinstance(optimizer, torch.optim.Optimizer):
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            return parameters[index] if index < len(parameters) else None
        case _:
            return None


def _misfit(fqn: str, metadata: Metadata, expected: Mapping[str, object]) -> str:
    described, here = metadata.state_dict_metadata[fqn], expected.get(fqn)
    if fqn not in expected:
        return ""
    if isinstance(described, TensorStorageMetadata) != isinstance(here, torch.Tensor):
        return f"{fqn} is a tensor on one side only"
    if isinstance(described, TensorStorageMetadata) and isinstance(here, torch.Tensor):
        saved_kind = (tuple(described.size), described.properties.dtype)
        if saved_kind != (tuple(here.shape), here.dtype):
            return f"{fqn} was saved as {saved_kind[1]} {saved_kind[0]} and is {here.dtype} {tuple(here.shape)} here"
    return ""


def _mismatch(missing: list[str], unexpected: list[str], shapes: list[str]) -> str:
    lines = ["the checkpoint does not fit the state; nothing was changed"]
    kinds = (("not in the checkpoint", missing), ("not in the state", unexpected), ("of another kind", shapes))
    for title, names in kinds:
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines.append(f"{len(names)} {title}: {', '.join(names[:_SHOWN])}{more}")
    lines.append("restore with the same model, optimizer and state keys as at the save")
    return "; ".join(lines)


def _read(
    store: Store, folder: str, metadata: Metadata, templates: Mapping[str, torch.Tensor | None]
) -> dict[str, object]:
    """Read every leaf; PyTorch's load planner decides which parts of which chunks each tensor needs."""
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    values: dict[str, object] = dict(templates)
    planner.set_up_planner(values, metadata, is_coordinator=True)
    by_file: dict[str, list[ReadItem]] = {}
    for item in planner.create_local_plan().items:
        by_file.setdefault(metadata.storage_data[item.storage_index].relative_path, []).append(item)
    for file, items in by_file.items():
        with store.open(f"{folder}/{file}") as stream:
            for item in sorted(items, key=lambda each: metadata.storage_data[each.storage_index].offset):
                place = metadata.storage_data[item.storage_index]
                stream.seek(place.offset)
                _place_item(planner, item, io.BytesIO(stream.read(place.length)))
    return values


def _place_item(planner: DefaultLoadPlanner, item: ReadItem, payload: io.BytesIO) -> None:
    if item.type is LoadItemType.BYTE_IO:
        planner.load_bytes(item, payload)
        return
    chunk: torch.Tensor = torch.load(payload, map_location="cpu", weights_only=True)
    for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        chunk = chunk.narrow(dim, start, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(chunk)
    planner.commit_tensor(item, target)


def _demand_same_groups(state: Mapping[str, object], current: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    """Compare the parameter groups of optimizers, whose own check comes only when the model has been changed."""
    for key, value in state.items():
        if not isinstance(value, torch.optim.Optimizer):
            continue
        here = [len(group["params"]) for group in current[key]["param_groups"]]
        saved = [len(group["params"]) for group in loaded[key]["param_groups"]]
        if here != saved:
            raise StateMismatchError(
                _mismatch([], [], [f"{key}.param_groups has {here} parameters here and {saved} in the checkpoint"])
            )


def _apply(
    state: dict[str, Any],
    current: Mapping[str, Any],
    loaded: Mapping[str, Any],
    leaves: Mapping[str, list[Leaf]],
) -> None:
    for key, value in state.items():
        if not isinstance(value, Stateful):
            for leaf in leaves[key]:
                assign(state, leaf)
            continue
        restored = loaded[key]
        if isinstance(value, torch.nn.Module):
            restored = OrderedDict(restored)
            # Without the versions kept there, a module takes its state for one of an old release.
            restored._metadata = getattr(current[key], "_metadata", None)  # type: ignore[attr-defined]  # noqa: SLF001
        value.load_state_dict(restored)
