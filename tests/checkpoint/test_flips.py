# SPDX-License-Identifier: Apache-2.0
"""A bit that changed anywhere is found by verify and by restore, which names the file and takes the next older one."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint import Checkpointer
from checkpoint.__main__ import main as command
from checkpoint.api import CheckpointRef, open_catalogue
from checkpoint.layout import Envelopes
from tests.checkpoint.pair import pair, save_on_both
from tests.checkpoint.training import flip

_FILES = [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json", "structure.json"]
_SAMPLED = 60
NEWEST = CheckpointRef(2, 1)


def state_of(step: int) -> dict[str, Any]:
    tensors = [
        torch.full((width,), step, dtype=kind) for width in (1, 50, 700) for kind in (torch.float32, torch.int64)
    ]
    return {"tensors": tensors, "step": step, "text": "x" * 40}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks' checkpoints of steps 1 and 2; every test leaves it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHECKPOINT_MEMORY", str(tmp_path_factory.mktemp("memory")))
        patch.setenv("CHECKPOINT_WRITER", "thread")
        folder = tmp_path_factory.mktemp("store")
        with pair(folder, attempt=1) as ranks:
            for step in (1, 2):
                save_on_both(ranks, step, state_of(step))
    return folder


@pytest.fixture
def newest(store: Path) -> Path:
    return store / "step-000000000002-a1"


def record_edges(newest: Path, name: str) -> Iterator[int]:
    """First and last byte of every record: of lines in text, and of streams, values and gaps in a rank's file."""
    if name.endswith(".json"):
        at = 0
        for line in (newest / name).read_bytes().splitlines(keepends=True):
            yield from (at, at + len(line) - 1)
            at += len(line)
    elif name.endswith(".distcp"):
        metadata = pickle.loads((newest / ".metadata").read_bytes())
        for index, place in metadata.storage_data.items():
            if place.relative_path != name:
                continue
            last = place.offset + place.length - 1
            yield from (place.offset, place.offset + 1, last)
            described = metadata.state_dict_metadata[index.fqn]
            if hasattr(described, "properties"):
                envelope = Envelopes().of(described.properties.dtype, tuple(described.size))
                values = place.offset + len(envelope.head)
                yield from (values - 1, values, values + envelope.room - 1, values + envelope.room, last + 1)


@pytest.mark.parametrize("name", _FILES)
def test_a_flipped_bit_is_found_and_its_file_named(store: Path, newest: Path, name: str) -> None:
    assert sorted(path.name for path in newest.iterdir()) == _FILES
    catalogue, path, chance = open_catalogue(str(store)), newest / name, random.Random(name)
    size = path.stat().st_size
    sampled = (chance.randrange(size) for _ in range(_SAMPLED))
    places = sorted({place for place in (0, size - 1, *record_edges(newest, name), *sampled) if place < size})
    assert len(places) >= 40
    for place in places:
        mask = 1 << chance.randrange(8)
        flip(path, place, mask)
        damage = catalogue.verify(NEWEST)
        flip(path, place, mask)
        assert [each.name for each in damage] == [name], place
    assert catalogue.verify(NEWEST) == []


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("change", ["first", "middle", "last", "cut", "longer", "empty", "gone"])
def test_a_restore_passes_over_what_is_damaged(store: Path, newest: Path, name: str, change: str) -> None:
    path = newest / name
    whole = path.read_bytes()
    places = {"first": 0, "middle": len(whole) // 2, "last": len(whole) - 1}
    if change in places:
        flip(path, places[change], 0x10)
    elif change == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": whole[:-1], "longer": whole + b"\0", "empty": b""}[change])
    fence, state = (store / "FENCE.json").read_bytes(), state_of(0)
    try:
        with Checkpointer(store) as checkpointer:
            assert checkpointer.restore(state) == 1
        assert state["step"] == 1 and all(each.eq(1).all() for each in state["tensors"])
    finally:
        (aside,) = store.glob("damaged-*")
        (aside / name).write_bytes(whole)
        aside.rename(newest)
        (store / "FENCE.json").write_bytes(fence)


def test_every_damaged_file_is_named_at_once(store: Path, newest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harmed = ["__0_0.distcp", "__1_0.distcp", "structure.json"]
    for name in harmed:
        flip(newest / name, 3)
    assert command(["verify", str(store), "--format", "json"]) == 1
    for name in harmed:
        flip(newest / name, 3)
    found = {each["step"]: [file["file"] for file in each["damaged"]] for each in json.loads(capsys.readouterr().out)}
    assert found == {1: [], 2: harmed}
    assert command(["verify", str(store)]) == 0
