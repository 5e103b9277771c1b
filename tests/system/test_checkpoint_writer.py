# SPDX-License-Identifier: Apache-2.0
"""The writer process outlives its ranks, is replaced when it dies, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from checkpoint.api import open_catalogue
from checkpoint.stores import open_store

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
_REPOSITORY = Path(__file__).parents[2]
_MIB = 1 << 20


class Launch:
    """Two ranks under torchrun, their store, memory folder and events."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.memory = folder / "memory"
        self.memory.mkdir(exist_ok=True)
        self.events = folder / "events"

    @contextmanager
    def run(self, size: int, *more: str) -> Iterator[IO[str]]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [str(_REPOSITORY / "tests/system/writer_program.py"), str(self.store), str(size), *more]
        environment = {
            **os.environ,
            "PYTHONPATH": str(_REPOSITORY),
            "OMP_NUM_THREADS": "1",
            "CHECKPOINT_MEMORY": str(self.memory),
            "CHECKPOINT_EVENTS": str(self.events),
            "CHECKPOINT_LINGER_S": "0",
            "CHECKPOINT_HOLD_S": "0",
        }
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as torchrun:
            assert torchrun.stdout is not None
            try:
                yield torchrun.stdout
            finally:
                self.kill_ranks()
                torchrun.kill()

    def kill_ranks(self) -> None:
        kill(processes("writer_program.py", str(self.store)))

    def kill_writer(self) -> None:
        (pid,) = processes("checkpoint writer", str(self.store))
        os.kill(pid, signal.SIGKILL)

    def committed(self) -> list[int]:
        return [each.step for each in open_catalogue(str(self.store)).committed()]

    def has_handed_in(self) -> bool:
        """Whether the writer has begun with rank 0's part of a save, and is through with rank 1's."""
        store = open_store(str(self.store))
        parts = [store.files(folder).keys() for folder in store.folders()]
        return bool(self.committed()) or any({"__0_0.distcp", "plan-1.json"} <= each for each in parts)

    def demand_whole(self) -> None:
        """Nobody may write meanwhile."""
        catalogue = open_catalogue(str(self.store))
        assert all(catalogue.verify(each.ref) == [] for each in catalogue.committed())

    def happened(self, event: str, rank: int = 0) -> list[dict[str, Any]]:
        lines = Path(f"{self.events}.rank-{rank}.jsonl").read_text().splitlines()
        return [fact for fact in map(json.loads, lines) if fact["event"] == event]

    def left(self) -> list[str]:
        """What is in the memory folder, and half-written in the store."""
        return [str(each) for each in [*self.memory.rglob("*.*"), *self.store.glob("*.tmp")]]


def processes(*words: str) -> list[int]:
    """Those whose command line holds all the words; torchrun, which names the program too, is left out."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if all(word in line for word in words) and "torch.distributed.run" not in line:
                found.append(int(each.name))
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def until(is_so: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    ends = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < ends, what()
        time.sleep(0.05)


def read_until(lines: IO[str], start: str) -> str:
    for line in lines:
        if line.startswith(start):
            return line.strip()
    raise AssertionError(f"no line {start!r}")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    found = Launch(tmp_path)
    yield found
    kill(processes(str(found.store)))


def test_what_all_ranks_have_handed_in_is_committed_though_they_are_killed(launch: Launch) -> None:
    with launch.run(64 * _MIB) as lines:
        read_until(lines, "saved 1")
        until(launch.has_handed_in)
        launch.kill_ranks()
    until(lambda: not processes("checkpoint writer", str(launch.store)))
    assert launch.committed()
    assert launch.left() == []
    newest = launch.committed()[-1]
    with launch.run(64 * _MIB) as lines:
        assert read_until(lines, "restored") == f"restored {newest}"
        until(lambda: launch.committed()[-1] > newest)
    until(lambda: launch.left() == [], launch.left)
    launch.demand_whole()


def test_a_save_that_lacks_a_rank_which_died_is_given_up_and_cleaned(launch: Launch) -> None:
    with launch.run(8 * _MIB, "leave-at", "3") as lines:
        read_until(lines, "saved 3")
        until(lambda: launch.happened("save_failed"))
    (failed,) = launch.happened("save_failed")
    assert failed["step"] == 3 and "rank 1 ended before it handed in its part" in failed["message"]
    assert launch.committed() == [1, 2]
    until(lambda: launch.left() == [], launch.left)
    launch.demand_whole()


def test_a_writer_that_dies_costs_its_save_alone(launch: Launch) -> None:
    with launch.run(64 * _MIB) as lines:
        read_until(lines, "saved 2")
        launch.kill_writer()
        until(lambda: launch.committed() and launch.committed()[-1] > 4)
        assert len(processes("checkpoint writer", str(launch.store))) == 1
        # On a busy machine the writer may have had nothing in hand, or a rank no free slot while it was away.
        reasons = ("checkpoint writer ended", "both slots are busy")
        failures = [each["message"] for each in launch.happened("save_failed")]
        assert [each for each in failures if not any(reason in each for reason in reasons)] == []
    until(lambda: launch.left() == [], launch.left)
    launch.demand_whole()


def test_when_ranks_and_writer_die_the_next_start_cleans_and_resumes(launch: Launch) -> None:
    with launch.run(64 * _MIB) as lines:
        read_until(lines, "saved 2")
        until(launch.committed)
        launch.kill_writer()
        launch.kill_ranks()
    assert launch.left() != []
    known = launch.committed()
    with launch.run(64 * _MIB) as lines:
        assert read_until(lines, "restored") == f"restored {known[-1]}"
        until(lambda: launch.committed()[-1] > known[-1])
    until(lambda: launch.left() == [], launch.left)
    launch.demand_whole()
