# SPDX-License-Identifier: Apache-2.0
"""Load a verified checkpoint into the user's objects.

Everything is read into fresh tensors and compared before the first object changes, so that a state that does not fit,
or a store that fails while it is read, leaves all of them as they were.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from checkpoint import rng
from checkpoint.api import StateMismatchError
from checkpoint.decoding import Decoder, extents_by_file
from checkpoint.flatten import RESERVED_KEY, Leaf, assign, flatten, materialize, unflatten
from checkpoint.manifest import FileRecord
from checkpoint.plan import LeafPath, decode_paths

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Contents:
    """What a checkpoint consists of: PyTorch's metadata, our structure file, each data file's size and checksum."""

    metadata: bytes
    structure: bytes
    files: Mapping[str, FileRecord]


class Restoration:
    """One checkpoint on its way into one state.

    Raises:
        StateMismatchError: the checkpoint does not fit the state.
    """

    def __init__(self, contents: Contents, state: dict[str, Any], *, rank: int) -> None:
        metadata: Metadata = pickle.loads(contents.metadata)  # noqa: S301 - the format; see `commit`
        self._paths = decode_paths(contents.structure)
        self._state = state
        self._current = {key: materialize(key, value) for key, value in state.items()}
        templates = _templates(metadata, self._paths, state, self._current)
        self._random_fqn = f"{RESERVED_KEY}.{rank}"
        if self._random_fqn in metadata.state_dict_metadata:
            templates[self._random_fqn] = None
        self._values: dict[str, Any] = dict(templates)
        self.extents = extents_by_file(metadata)
        # Their values are copied once more when they are applied, so that until then they may lie anywhere.
        self._copied_again = {name for name in templates if self._is_copied_again(name)}
        self.decoder = Decoder(metadata, self._values, self._copied_again)
        self._leaves: dict[str, list[Leaf]] = {key: [] for key in state}
        self._loaded: dict[str, Any] = {}
        self._random: object = None

    def fresh(self, *, is_lent: bool) -> list[torch.Tensor]:
        """New tensors that are about to be filled; if the tier `is_lent`, without those that only refer to it."""
        left_out = self._copied_again if is_lent else set()
        return [each for name, each in self._values.items() if isinstance(each, torch.Tensor) and name not in left_out]

    def finish(self) -> None:
        """All that was read is verified: make of it what the state's objects take. Nothing is changed yet.

        Raises:
            StateMismatchError: the checkpoint does not fit the state.
            CheckpointError: this PyTorch cannot read it.
        """
        self.decoder.finish()
        self._random = self._values.pop(self._random_fqn, None)
        for fqn, value in self._values.items():
            self._leaves[str(self._paths[fqn].parts[0])].append(Leaf(self._paths[fqn], value))
        self._loaded = {
            key: unflatten(each) for key, each in self._leaves.items() if isinstance(self._state[key], Stateful)
        }
        _demand_same_groups(self._state, self._current, self._loaded)

    def _is_copied_again(self, name: str) -> bool:
        if name not in self._paths or isinstance(self._values[name], DTensor):
            return False
        holder = self._state.get(str(self._paths[name].parts[0]))
        return isinstance(holder, torch.nn.Module) or not isinstance(holder, Stateful)

    def apply(self) -> bool:
        """Change the state, then this rank's random state; False when the checkpoint has none for this rank."""
        _apply(self._state, self._current, self._loaded, self._leaves)
        # What refers to a tier's bytes has to be gone before the tier is closed.
        for each in (self._values, self._leaves, self._loaded):
            each.clear()
        if isinstance(self._random, dict):
            rng.reinstate(self._random)
        return self._random is not None


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
