# SPDX-License-Identifier: Apache-2.0
"""The state as flat leaves: PyTorch's names, and nothing lost on the way back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from checkpoint.api import CheckpointError
from checkpoint.flatten import flatten, flatten_state, fqn, unflatten
from tests.checkpoint.training import fresh_state

KEYS = st.one_of(st.sampled_from(["a", "b", "c"]), st.integers(0, 3))
PLAIN = st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.just(()))
NESTED = st.recursive(
    PLAIN, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3))
)


def has_clash(value: Any) -> bool:
    """Whether a dict has both 1 and "1", which PyTorch's names cannot tell apart."""
    if isinstance(value, dict):
        return len({str(key) for key in value}) != len(value) or any(has_clash(each) for each in value.values())
    return isinstance(value, list) and any(has_clash(each) for each in value)


@given(NESTED)
@settings(max_examples=200)
def test_a_nested_value_comes_back_as_it_was(value: Any) -> None:
    if has_clash(value):
        return
    leaves = flatten("key", value)
    assert all(name == fqn(leaf.path) for name, leaf in leaves.items())
    assert unflatten(list(leaves.values())) == value


@given(NESTED)
@settings(max_examples=200)
def test_names_and_paths_are_those_of_pytorch(value: Any) -> None:
    if has_clash(value):
        return
    leaves = flatten("key", value)
    theirs, mapping = flatten_state_dict({"key": value})
    assert {name: leaf.value for name, leaf in leaves.items() if name in theirs} == theirs
    assert {name: leaf.path.torch_path() for name, leaf in leaves.items() if name in theirs} == mapping
    assert all(leaf.value == {} for name, leaf in leaves.items() if name not in theirs)


def test_an_optimizers_integer_keys_come_back_as_integers() -> None:
    state = {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    assert unflatten(list(flatten("optimizer", state).values())) == state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b.c": 1, "b": {"c": 2}}}, "two values are called 'a.b.c'"),
        ({"a": {"b": 1}, "a.b": 2}, "two values are called 'a.b'"),
        ({"a": {(1, 2): 3}}, "a has a key of type tuple"),
        ({"a": {"model": torch.nn.Linear(1, 1)}}, "a.model is a Linear inside a container"),
        ({"checkpoint_rng": 1}, "keeps the random state"),
    ],
)
def test_a_state_that_cannot_be_saved_is_named(state: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        flatten_state(state)


def test_objects_are_flattened_by_their_state_dict() -> None:
    names = flatten_state(fresh_state(0)).keys()
    assert {
        "model.0.weight",
        "optimizer.param_groups.0.lr",
        "data.position",
        "average",
        "notes.history.1.best",
    } <= names
