# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of several real ranks on gloo: saved without a collective, resumed bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from checkpoint import Checkpointer
from checkpoint.api import open_catalogue
from tests.system import checkpoint_program

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
_REPOSITORY = Path(__file__).parents[2]


def launch(folder: Path, mode: str, steps: int, *more: str, ranks: int = 2) -> list[dict[str, Any]]:
    """Run the program under torchrun to its end; returns each rank's report."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(_REPOSITORY / "tests/system/checkpoint_program.py"), str(folder), mode, str(steps), *more]
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return [json.loads(Path(f"{folder}.rank-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "bare"])
def test_a_resumed_launch_equals_an_undisturbed_one(tmp_path: Path, mode: str) -> None:
    undisturbed = launch(tmp_path / "undisturbed", mode, 8)
    folder = tmp_path / "resumed"
    launch(folder, mode, 4)
    resumed = launch(folder, mode, 8)
    for mine, theirs in zip(resumed, undisturbed, strict=True):
        assert mine["start"] == 3 and mine["attempt"] == 2
        assert mine["losses"] == {step: theirs["losses"][step] for step in ("4", "5", "6", "7", "8")}
        assert mine["digest"] == theirs["digest"]
    known = open_catalogue(str(folder)).committed()
    assert [(each.step, each.attempt, each.world_size) for each in known] == [(3, 1, 2), (6, 2, 2)]
    names = {path.name for path in (folder / "step-000000000006-a2").iterdir()}
    assert names == {"__0_0.distcp", "__1_0.distcp", ".metadata", "structure.json", "manifest.json"}


def test_ranks_that_save_by_time_save_after_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    launch(tmp_path / "store", "ddp", 600, "timed")
    known = open_catalogue(str(tmp_path / "store")).committed()
    assert known and all(each.world_size == 2 for each in known)
    begun = [
        [
            event["step"]
            for line in path.read_text().splitlines()
            if (event := json.loads(line))["event"] == "save_started"
        ]
        for path in sorted(tmp_path.glob("events.rank-*.jsonl"))
    ]
    assert begun[0] == begun[1] and {each.step for each in known} <= set(begun[0])


def test_ranks_agree_on_an_older_one_when_the_newest_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    launch(folder, "ddp", 7)
    damaged = folder / "step-000000000006-a1" / "__1_0.distcp"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert [each["start"] for each in launch(folder, "ddp", 8)] == [3, 3]
    assert (folder / "damaged-step-000000000006-a1").is_dir()


def test_two_ranks_state_loads_in_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    launch(folder, "bare", 3)
    state = checkpoint_program.build("bare")
    with Checkpointer(folder) as checkpointer:
        assert checkpointer.restore(state) == 3
    assert state["average"].eq(6).all() and torch.is_tensor(state["optimizer"].state_dict()["state"][0]["exp_avg"])


def as_plain_pytorch_reads(folder: Path, scratch: Path) -> dict[str, Any]:
    dcp_to_torch_save(folder, scratch)
    return dict(torch.load(scratch, weights_only=False))


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_state_goes_from_two_ranks_to_four_to_one_and_plain_pytorch_reads_each(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "store"
    launch(folder, mode, 3)
    launch(folder, mode, 3, "resave", ranks=4)
    launch(folder, mode, 3, "resave", ranks=1)
    known = open_catalogue(str(folder)).committed()
    assert [(each.step, each.world_size) for each in known] == [(3, 2), (4, 4), (5, 1)]
    two, four, one = (as_plain_pytorch_reads(Path(each.uri), tmp_path / "whole") for each in known)
    assert torch.equal(two["average"], torch.full((2,), 6.0)) and two["model"].keys() == one["model"].keys()
    for name, value in two["model"].items():
        assert torch.equal(value, four["model"][name]) and torch.equal(value, one["model"][name]), name
    for name, moments in two["optimizer"]["state"].items():
        for kind, value in moments.items():
            assert torch.equal(value, four["optimizer"]["state"][name][kind])
            assert torch.equal(value, one["optimizer"]["state"][name][kind])


def test_a_sharded_state_loads_whole_in_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    launch(folder, "fsdp", 3)
    state = checkpoint_program.build("bare")
    with Checkpointer(folder) as checkpointer:
        assert checkpointer.restore(state) == 3
    assert state["average"].eq(6).all() and state["replica"].eq(6).all()
