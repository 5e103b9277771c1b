# SPDX-License-Identifier: Apache-2.0
"""The user's state as flat leaves and back, under the same keys as PyTorch's own flattening.

Two things are kept that PyTorch's flattening loses: the type of integer keys (an optimizer's state), and empty dicts
and lists, which become leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful

from checkpoint.api import CheckpointError
from checkpoint.plan import LeafPath

RESERVED_KEY = "checkpoint_rng"
"""Top-level key under which each rank's random state lies; the user's state may not have it."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor, or one value that is pickled whole."""

    path: LeafPath
    value: object


def materialize(key: str, value: object) -> object:
    """The state dict of an object that has one, else the value itself.

    Raises:
        CheckpointError: the key is the library's own.
    """
    if key == RESERVED_KEY:
        raise CheckpointError(f"state[{key!r}]: the library keeps the random state under this key; choose another")
    return value.state_dict() if isinstance(value, Stateful) else value


def flatten(key: str, value: object) -> dict[str, Leaf]:
    """Leaves of one top-level entry by PyTorch's name for them (path joined with dots).

    Raises:
        CheckpointError: two leaves share a name, a dict has a key that is neither str nor int, or an object that has
            a state dict is buried in a container.
    """
    leaves: dict[str, Leaf] = {}
    for path, leaf in _walk(LeafPath((key,)), value):
        name = fqn(path)
        if name in leaves:
            raise CheckpointError(f"state: two values are called {name!r}; rename the key that holds a dot")
        # The check by protocol is slow, and a model has thousands of tensors.
        if not isinstance(leaf, torch.Tensor) and isinstance(leaf, Stateful):
            raise CheckpointError(
                f"state: {name} is a {type(leaf).__name__} inside a container; put it at the top level of the state"
            )
        leaves[name] = Leaf(path, leaf)
    return leaves


def flatten_state(state: Mapping[str, object]) -> dict[str, Leaf]:
    """Leaves of the whole state (see `flatten`)."""
    leaves: dict[str, Leaf] = {}
    for key, value in state.items():
        found = flatten(key, materialize(key, value))
        if clash := leaves.keys() & found.keys():
            raise CheckpointError(f"state: two values are called {min(clash)!r}; rename the key that holds a dot")
        leaves.update(found)
    return leaves


def fqn(path: LeafPath) -> str:
    """PyTorch's name of a leaf."""
    return ".".join(map(str, path.parts))


def unflatten(leaves: Sequence[Leaf]) -> Any:
    """The nested value that the leaves of one top-level entry came from, without its top-level key."""
    root: dict[Any, Any] = {}
    for leaf in sorted(leaves, key=lambda each: len(each.path.parts)):
        _place(root, leaf.path, leaf.value)
    return next(iter(root.values()))


def assign(state: dict[str, Any], leaf: Leaf) -> None:
    """Put a leaf's value where its path leads in a state of the same shape; tensors are copied into."""
    parts = leaf.path.parts
    holder: Any = state
    for part in parts[:-1]:
        holder = holder[part]
    target = holder[parts[-1]]
    if isinstance(target, torch.Tensor) and isinstance(leaf.value, torch.Tensor):
        with torch.no_grad():
            target.copy_(leaf.value)
    else:
        holder[parts[-1]] = leaf.value


def _walk(path: LeafPath, value: object) -> Iterator[tuple[LeafPath, object]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            if type(key) not in (str, int):
                raise CheckpointError(
                    f"state: {fqn(path)} has a key of type {type(key).__name__}; only str and int keys can be saved"
                )
            yield from _walk(LeafPath((*path.parts, key), path.lists), inner)
    elif isinstance(value, list) and _is_traversed(value):
        place = frozenset({len(path.parts)})
        for index, inner in enumerate(value):
            yield from _walk(LeafPath((*path.parts, index), path.lists | place), inner)
    else:
        yield path, value


def _is_traversed(values: list[object]) -> bool:
    """Whether PyTorch's flattening goes into a list: it holds a dict or tensor, at any depth of lists."""
    return any(
        isinstance(each, Mapping | torch.Tensor) or (isinstance(each, list) and _is_traversed(each)) for each in values
    )


def _place(root: dict[Any, Any], path: LeafPath, value: object) -> None:
    holder: Any = root
    for place, part in enumerate(path.parts[:-1]):
        empty: Callable[[], Any] = list if place + 1 in path.lists else dict
        holder = _descend(holder, part, empty)
    if isinstance(holder, list):
        _reach(holder, path.parts[-1])
    holder[path.parts[-1]] = value


def _descend(holder: Any, part: str | int, empty: Callable[[], Any]) -> Any:
    if isinstance(holder, list):
        _reach(holder, part)
        if holder[int(part)] is None:
            holder[int(part)] = empty()
        return holder[int(part)]
    return holder.setdefault(part, empty())


def _reach(holder: list[object], index: str | int) -> None:
    holder.extend([None] * (int(index) + 1 - len(holder)))
