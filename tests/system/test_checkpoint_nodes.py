# SPDX-License-Identifier: Apache-2.0
"""Two nodes, each with two ranks, a writer and memory of its own: what they hold survives ranks, and a whole node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from checkpoint.__main__ import main
from checkpoint.api import open_catalogue
from checkpoint.held import HeldImage, held_here
from tests.system.test_checkpoint_writer import kill, processes, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
_REPOSITORY = Path(__file__).parents[2]
_NODES, _LOCAL = 2, 2
_NEVER = 1_000_000


class Job:
    """A job whose nodes are folders; each launch of it is the next attempt."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.events = folder / "events"
        self._folder = folder
        self._ranks: list[subprocess.Popen[str]] = []

    def memory(self, node: int) -> Path:
        return self._folder / f"memory-{node}"

    def launch(self, *, every: int, memory_every: int = 0, steps: int = _NEVER, replicas: bool = False) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, str(_REPOSITORY / "tests/system/node_program.py"), str(self.store)]
        command += [str(every), str(memory_every), str(steps)]
        for rank in range(_NODES * _LOCAL):
            node, local = divmod(rank, _LOCAL)
            self.memory(node).mkdir(exist_ok=True)
            environment = {
                **os.environ,
                "PYTHONPATH": str(_REPOSITORY),
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(_NODES * _LOCAL),
                "LOCAL_WORLD_SIZE": str(_LOCAL),
                "CHECKPOINT_MEMORY": str(self.memory(node)),
                "CHECKPOINT_EVENTS": str(self.events),
                "CHECKPOINT_HOLD_S": "600",
                "CHECKPOINT_REPLICAS": str(int(replicas)),
            }
            log = (self._folder / f"rank-{rank}.log").open("a")
            with log:
                self._ranks.append(
                    subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
                )

    def lines(self, rank: int = 0) -> IO[str]:
        stream = self._ranks[rank].stdout
        assert stream is not None
        return stream

    def restored(self) -> int:
        """The step from which all ranks go on."""
        steps = {self.heard(rank, "restored") for rank in range(len(self._ranks))}
        assert len(steps) == 1
        return steps.pop()

    def heard(self, rank: int, word: str, at_least: int = 0) -> int:
        """The step of the next line of a rank that begins with the word and is not below a step."""
        for line in self.lines(rank):
            if line.startswith(word) and int(line.split()[1]) >= at_least:
                return int(line.split()[1])
        raise AssertionError((self._folder / f"rank-{rank}.log").read_text()[-4000:])

    def kill_ranks(self, ranks: range = range(_NODES * _LOCAL)) -> None:
        for rank in ranks:
            self._ranks[rank].send_signal(signal.SIGKILL)
        if len(ranks) == len(self._ranks):
            self.end()

    def end(self) -> list[int]:
        """Wait for all ranks; their exit codes."""
        codes = []
        for each in self._ranks:
            codes.append(each.wait(120))
            if each.stdout is not None:
                each.stdout.close()
        self._ranks.clear()
        return codes

    def lose_node(self, node: int) -> None:
        """End everything that runs on a node, and take its memory away."""
        for rank in range(node * _LOCAL, (node + 1) * _LOCAL):
            self._ranks[rank].send_signal(signal.SIGKILL)
        kill(self.writers(node))
        shutil.rmtree(self.memory(node))

    def writers(self, node: int) -> list[int]:
        found = []
        for pid in processes("checkpoint writer", str(self.store)):
            with suppress(OSError):
                if f"CHECKPOINT_MEMORY={self.memory(node)}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    def held(self, node: int) -> list[HeldImage]:
        return held_here(self.memory(node) / f"checkpoint-{os.getuid()}", str(self.store))

    def newest_held(self, node: int, *, is_replica: bool = False) -> int:
        """The newest step that a node holds of all its ranks, or as replicas of its peer's; 0 when there is none."""
        steps: dict[int, int] = {}
        for each in self.held(node):
            if each.is_replica == is_replica:
                steps[each.rank] = max(each.ref.step, steps.get(each.rank, 0))
        return min(steps.values()) if len(steps) == _LOCAL else 0

    def tiers(self) -> list[tuple[int | None, str]]:
        """The step of each restore of rank 0, and where it was read."""
        lines = Path(f"{self.events}.rank-0.jsonl").read_text().splitlines()
        facts = [json.loads(line) for line in lines]
        return [(each["step"], each["tier"]) for each in facts if each["event"] == "restored"]

    def committed(self) -> list[int]:
        return [each.step for each in open_catalogue(str(self.store)).committed()]

    def slabs(self, node: int) -> list[Path]:
        return list(self.memory(node).rglob("*.slab"))

    def close(self) -> None:
        for each in self._ranks:
            each.kill()
        self.end()
        kill(processes("checkpoint writer", str(self.store)))


class Size(NamedTuple):
    """What a process has: open file descriptors, threads, and memory of its own."""

    descriptors: int
    threads: int
    anonymous_bytes: int


def at_rest(pid: int) -> Size:
    """The least that a process has of each within two seconds, so without what it is just doing."""
    seen = []
    for _ in range(40):
        status = Path(f"/proc/{pid}/status").read_text()
        words = dict(line.split(":", 1) for line in status.splitlines())
        anonymous = int(words["RssAnon"].split()[0]) * 1024
        seen.append(Size(len(list(Path(f"/proc/{pid}/fd").iterdir())), int(words["Threads"]), anonymous))
        time.sleep(0.05)
    return Size(*(min(each) for each in zip(*seen, strict=True)))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def test_after_the_death_of_all_ranks_the_next_launch_restores_from_their_memory(job: Job) -> None:
    job.launch(every=2)
    assert job.restored() == 0
    job.heard(0, "saved", 6)
    until(lambda: len(job.committed()) == 2)
    job.kill_ranks()
    until(lambda: all({each.rank for each in job.held(node)} == {2 * node, 2 * node + 1} for node in range(_NODES)))
    job.launch(every=2, steps=10)
    step = job.restored()
    assert step >= 4 and job.tiers()[-1] == (step, "memory")
    assert job.end() == [0, 0, 0, 0]
    until(lambda: not job.slabs(0) and not job.slabs(1) and not processes("checkpoint writer", str(job.store)))


def test_what_the_memory_of_a_node_holds_is_listed_beside_the_store(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.launch(every=_NEVER, memory_every=4, replicas=True)
    assert job.restored() == 0
    until(lambda: job.newest_held(0) and job.newest_held(0, is_replica=True))
    job.kill_ranks()
    until(lambda: job.newest_held(0) == job.newest_held(0, is_replica=True))
    monkeypatch.setenv("CHECKPOINT_MEMORY", str(job.memory(0)))
    assert main(["ls", str(job.store)]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    newest = [row for row in rows if row[5] == "memory"][-1]
    assert newest[6:] == ["held", "yes", "ranks 0-1, replicas of ranks 2-3 of 4"]
    assert main(["ls", str(job.store), "--format", "json"]) == 0
    held = [each for each in json.loads(capsys.readouterr().out) if each["tier"] == "memory"][-1]
    assert (held["ranks"], held["replicas"], held["whole"]) == ([0, 1], [2, 3], True)
    assert held["step"] == int(newest[0]) and held["bytes"] > 4 * 800_000


def test_a_hundred_saves_with_replicas_leave_a_writer_no_larger_than_thirty(job: Job) -> None:
    job.launch(every=2, replicas=True)
    assert job.restored() == 0
    job.heard(0, "saved", 60)
    before = [at_rest(pid) for node in range(_NODES) for pid in job.writers(node)]
    slabs = len(job.slabs(0))
    job.heard(0, "saved", 200)
    after = [at_rest(pid) for node in range(_NODES) for pid in job.writers(node)]
    assert len(before) == len(after) == _NODES
    for was, now in zip(before, after, strict=True):
        assert now.descriptors <= was.descriptors + 2 and now.threads <= was.threads + 2
        assert now.anonymous_bytes < was.anonymous_bytes + (8 << 20)
    assert len(job.slabs(0)) <= slabs + 1


def test_what_was_only_in_memory_is_committed_when_the_ranks_die(job: Job) -> None:
    job.launch(every=_NEVER, memory_every=4)
    assert job.restored() == 0
    until(lambda: all(job.newest_held(node) >= 5 for node in range(_NODES)))
    assert job.committed() == []
    job.kill_ranks()
    job.launch(every=_NEVER, memory_every=4, steps=20)
    step = job.restored()
    assert step >= 4 and step in job.committed()
    assert job.end() == [0, 0, 0, 0]


def test_the_loss_of_a_node_costs_steps_and_not_the_interval(job: Job) -> None:
    job.launch(every=_NEVER, memory_every=4, replicas=True)
    assert job.restored() == 0
    until(lambda: all(job.newest_held(node, is_replica=True) >= 5 for node in range(_NODES)))
    job.lose_node(1)
    job.kill_ranks()
    assert {each.rank for each in job.held(0) if each.is_replica} == {2, 3}
    job.launch(every=_NEVER, memory_every=4, replicas=True, steps=20)
    step = job.restored()
    assert step >= 4 and job.tiers()[-1] == (step, "memory") and job.committed() == []
    assert job.end() == [0, 0, 0, 0]
    until(lambda: not job.slabs(0) and not job.slabs(1) and not processes("checkpoint writer", str(job.store)))


def test_a_node_whose_peer_hangs_saves_on_as_if_it_had_none(job: Job) -> None:
    job.launch(every=3, replicas=True)
    assert job.restored() == 0
    job.heard(0, "saved", 3)
    (theirs,) = job.writers(1)
    os.kill(theirs, signal.SIGSTOP)
    try:
        began = time.monotonic()
        step = job.heard(0, "saved", 12)
        assert step and time.monotonic() - began < 60
    finally:
        os.kill(theirs, signal.SIGCONT)
    until(lambda: max(job.committed(), default=0) > 12)
