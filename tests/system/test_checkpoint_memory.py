# SPDX-License-Identifier: Apache-2.0
"""What saving takes of a machine, measured on two real ranks and their writer, and that all of it is given back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint.api import open_catalogue
from tests.system.memory_program import writer_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
_REPOSITORY = Path(__file__).parents[2]
_MIB = 1 << 20
_STATE = 384 * _MIB
_TENSORS = 400
_SLACK = 24 * _MIB
"""Of what is measured: an interpreter's own memory, which comes and goes, and the slabs' rooms for growth."""
_WRITER = 256 * _MIB
"""A writer that commits has imported torch; a copy of a rank's part would come on top of that."""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder of this test's own in /dev/shm."""
    folder = Path(f"/dev/shm/checkpoint-test-{uuid.uuid4().hex}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def start(store: Path, memory: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(_REPOSITORY / "tests/system/memory_program.py"), str(store), str(_STATE), str(_TENSORS), *more]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"}
    environment |= {"CHECKPOINT_MEMORY": str(memory), "CHECKPOINT_LINGER_S": "0", "CHECKPOINT_HOLD_S": "0"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def told(store: Path, rank: int) -> dict[str, dict[str, Any]]:
    lines = Path(f"{store}.rank-{rank}.jsonl").read_text().splitlines()
    return {line["moment"]: line for line in map(json.loads, lines)}


def until(is_so: Callable[[], object], what: Callable[[], object]) -> None:
    ends = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < ends, what()
        time.sleep(0.05)


def files_in(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*")]


def test_two_copies_of_the_state_are_all_that_saving_takes_and_it_gives_them_back(tmp_path: Path, memory: Path) -> None:
    store = tmp_path / "store"
    with start(store, memory) as torchrun:
        assert torchrun.wait(300) == 0
    ranks = [told(store, rank) for rank in (0, 1)]
    # Both ranks have all of the state and save half of it each.
    for moment in ("prepared", "saved"):
        assert _STATE <= ranks[0][moment]["slabs"] <= 2 * _STATE + _SLACK
        shared = sum(rank[moment]["shared"] - rank["before"]["shared"] for rank in ranks)
        assert shared <= 2 * _STATE + _SLACK
    for rank in ranks:
        assert rank["saved"]["anonymous"] - rank["before"]["anonymous"] <= _SLACK
        assert rank["saved"]["descriptors"] - rank["before"]["descriptors"] <= 24
        assert rank["closed"]["shared"] - rank["before"]["shared"] <= _MIB
        assert rank["closed"]["anonymous"] - rank["before"]["anonymous"] <= _SLACK
        assert rank["closed"]["descriptors"] - rank["before"]["descriptors"] <= 4
    writer = ranks[0]["saved"]["writer"]
    assert 0 < writer["anonymous"] <= _WRITER and writer["descriptors"] <= 48
    until(lambda: files_in(memory) == [], lambda: files_in(memory))
    assert [each.step for each in open_catalogue(str(store)).committed()] == [4]


def test_the_start_after_a_kill_gives_back_what_the_dead_had_taken(tmp_path: Path, memory: Path) -> None:
    store = tmp_path / "store"
    with start(store, memory, "linger") as torchrun:
        assert torchrun.stdout is not None
        assert torchrun.stdout.readline() == torchrun.stdout.readline() == "lingers\n"
        writer = writer_of(memory / f"checkpoint-{os.getuid()}")
        assert writer is not None
        kill_all(torchrun, writer)
    left = sum(path.stat().st_size for path in memory.rglob("*.slab"))
    assert left >= _STATE
    with start(store, memory) as torchrun:
        assert torchrun.wait(300) == 0
    # Before the next start's slabs were made, those of the dead were gone: there are never four copies.
    assert told(store, 0)["prepared"]["slabs"] <= 2 * _STATE + _SLACK
    until(lambda: files_in(memory) == [], lambda: files_in(memory))


def kill_all(torchrun: subprocess.Popen[str], writer: int) -> None:
    """The writer first, then the launcher, and with it, as it is killed, its ranks."""
    ranks = [
        int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal() and _parent(each) == torchrun.pid
    ]
    assert len(ranks) == 2
    for pid in (writer, torchrun.pid, *ranks):
        os.kill(pid, signal.SIGKILL)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
