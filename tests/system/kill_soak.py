# SPDX-License-Identifier: Apache-2.0
"""Kills ranks and writer of a training that saves all the time, again and again; goes on where it was cut.

    python -m tests.system.kill_soak FOLDER [--uri URI] [--kills 1000] [--seed 0]

Ranks and writers are forked from this process, which so has to stay free of threads: whatever opens the store does it
in a child. As a subreaper it inherits every process that outlives its parent, so that none can be left unnoticed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from checkpoint.manifest import short_digest
from tests.system.soak_launch import Launch, children_of, forked, writers
from tests.system.soak_store import Findings, inspect
from tests.system.warm_start import open_nursery

_PR_SET_CHILD_SUBREAPER = 36
_KINDS = {"one rank": 2, "both ranks": 3, "writer": 4, "writer, then ranks": 2, "ranks, then writer": 2, "opening": 1}
"""What is killed, and how often. `opening` hits the ranks while they start, the others while they save."""
_COLD_SHARE = 0.03
"""Share of launches whose ranks start the writer with a cold interpreter."""
_SAVING_S = 0.5
_GAP_S = 0.15
_NEXT_COMMIT_S = 120.0
_LEFT_S = 30.0
_TOLD_EVERY_S = 10.0
_OLD_S = 2 * 3600.0
_MOST_LOGGED_BYTES = 64 << 10
_MOST_DESCRIPTORS, _MOST_THREADS = 64, 24


@dataclass(slots=True)
class Progress:
    """What a cut run goes on from. `told` is the newest step that was reported as committed."""

    seed: int
    uri: str
    done: int = 0
    told: int = 0
    commits: int = 0
    heard_bytes: int = 0
    seconds: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)

    @classmethod
    def begun(cls, path: Path, seed: int, uri: str) -> Progress:
        """What the file says, if it is of the same soak; else a beginning."""
        if path.exists() and (found := cls(**json.loads(path.read_text()))).seed == seed and found.uri == uri:
            return found
        return cls(seed, uri)

    def keep(self, path: Path) -> None:
        """Write the file, atomically."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(path)


class Soak:
    """One store's kills. `memory` is the folder of slabs, of this soak alone."""

    def __init__(self, folder: Path, progress: Progress, memory: Path) -> None:
        self._folder = folder
        self._progress = progress
        self._memory = memory
        self._program, self._nursery = open_nursery(folder)
        self._events = folder / "events.rank-0.jsonl"

    def run(self, kills: int) -> None:
        """Kill until it has been done so often.

        Raises:
            AssertionError: something was lost, damaged or left.
        """
        progress, began = self._progress, time.monotonic()
        spent, told_at = progress.seconds, 0.0
        while progress.done < kills:
            self._kill(random.Random(f"{progress.seed}/{progress.done}"))
            progress.done += 1
            progress.seconds = spent + time.monotonic() - began
            progress.keep(self._folder / "progress.json")
            if time.monotonic() - told_at >= _TOLD_EVERY_S or progress.done == kills:
                told_at = time.monotonic()
                print(self._line(kills), flush=True)
        self._end()

    def _line(self, kills: int) -> str:
        progress = self._progress
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(progress.kinds.items()))
        return (
            f"{progress.done}/{kills} kills in {progress.seconds:.0f} s ({kinds}); {progress.commits} commits seen, "
            f"step {progress.told}"
        )

    def _launch(self, chance: random.Random) -> Launch:
        is_cold = chance.random() < _COLD_SHARE
        program = None if is_cold else self._program
        return Launch(self._folder, self._progress.uri, overlap=chance.random() < 0.5, writer_program=program)

    def _kill(self, chance: random.Random) -> None:
        """One launch, which restores what the one before left, and one kill."""
        kind = chance.choices(list(_KINDS), list(_KINDS.values()))[0]
        launch = self._launch(chance)
        try:
            if kind == "opening":
                time.sleep(chance.uniform(0.0, 0.4))
            else:
                self._check(launch, launch.restored())
                launch.go()
                time.sleep(chance.uniform(0.0, _SAVING_S))
            self._strike(kind, launch, chance)
        finally:
            launch.end()
        launch.clear()
        reap()
        self._let_time_pass()
        self._progress.kinds[kind] = self._progress.kinds.get(kind, 0) + 1

    def _strike(self, kind: str, launch: Launch, chance: random.Random) -> None:
        gap_s = chance.uniform(0.0, _GAP_S) if chance.random() < 0.7 else 0.0
        match kind:
            case "one rank":
                launch.kill(chance.randrange(2))
                time.sleep(gap_s)
            case "writer":
                self._kill_writer()
                self._await_commit_of_the_next(launch)
                launch.stop()
            case "writer, then ranks":
                self._kill_writer()
                time.sleep(gap_s)
            case "ranks, then writer":
                launch.end()
                time.sleep(gap_s)
                self._kill_writer()

    def _kill_writer(self) -> None:
        for pid in writers(self._memory):
            os.kill(pid, signal.SIGKILL)

    def _await_commit_of_the_next(self, launch: Launch) -> None:
        """Ranks whose writer died start another by themselves, and what it commits is new."""
        self._hear()
        before, ends = self._progress.told, time.monotonic() + _NEXT_COMMIT_S
        while self._progress.told <= before:
            assert time.monotonic() < ends, f"no commit after step {before} since the writer was killed"
            launch.demand_well()
            time.sleep(0.02)
            self._hear()

    def _let_time_pass(self) -> None:
        """What a killed rank left of a fence is removed when nobody can be writing it any more: make it that old."""
        long_ago = time.time() - _OLD_S
        for path in (self._folder / "store").glob("*.partial"):
            os.utime(path, (long_ago, long_ago))

    def _hear(self) -> None:
        """Take note of the commits that were reported; the writer may report them when the ranks are gone."""
        if not self._events.exists():
            return
        with self._events.open("rb") as stream:
            stream.seek(self._progress.heard_bytes)
            whole = stream.read().rpartition(b"\n")
        self._progress.heard_bytes += len(whole[0] + whole[1])
        facts = map(json.loads, whole[0].splitlines())
        steps = [fact["step"] for fact in facts if fact["event"] == "committed"]
        self._progress.commits += len(steps)
        self._progress.told = max([self._progress.told, *steps])

    def _check(self, launch: Launch, step: int) -> None:
        """What the ranks restored, while they wait: nobody else may write to the store now."""
        self._hear()
        told = self._progress.told
        found = forked(lambda: inspect(self._progress.uri))
        assert step >= told, f"step {told} was reported as committed, but step {step} was restored"
        assert step == found.newest, f"step {found.newest} is the newest, but step {step} was restored"
        assert not found.faults, found.faults
        self._progress.told = step
        self._await_memory_of(launch)

    def _await_memory_of(self, launch: Launch) -> None:
        """Slabs of the living ranks alone are left, and one writer that does not grow."""
        ends = time.monotonic() + _LEFT_S
        while why := self._excess(launch):
            assert time.monotonic() < ends, why
            time.sleep(0.02)

    def _excess(self, launch: Launch) -> str:
        slabs = sorted(path.name for path in self._memory.rglob("*.slab"))
        if len(slabs) > 4:
            return f"slabs are left: {slabs}"
        others = sorted(path.name for path in self._memory.rglob("*.*") if path.suffix != ".slab")
        if len(others) > 3:
            return f"files are left beside the slabs: {others}"
        mine = {self._nursery, *launch.pids}
        strangers = [pid for pid in children_of(os.getpid()) if pid not in mine]
        if len(strangers) > 1:
            return f"processes are left: {strangers}"
        logged = sum(path.stat().st_size for path in self._memory.rglob("*.log"))
        if logged > _MOST_LOGGED_BYTES:
            return f"the writers have logged {logged} bytes"
        for pid in strangers:
            descriptors, threads = len(list(Path(f"/proc/{pid}/fd").iterdir())), _status(pid, "Threads")
            if descriptors > _MOST_DESCRIPTORS or threads > _MOST_THREADS:
                return f"the writer has {descriptors} descriptors and {threads} threads"
        return ""

    def _end(self) -> None:
        """A last launch ends by its own will; then nothing may be left but the store."""
        launch = Launch(self._folder, self._progress.uri, overlap=False, writer_program=self._program)
        self._check(launch, launch.restored())
        launch.go()
        self._await_commit_of_the_next(launch)
        launch.stop()
        launch.end()
        launch.clear()
        self._hear()
        ends = time.monotonic() + _LEFT_S
        while children_of(os.getpid()) != [self._nursery]:
            assert time.monotonic() < ends, f"processes are left: {children_of(os.getpid())}"
            reap()
            time.sleep(0.05)
        left = [str(path) for path in self._memory.rglob("*") if path.suffix != ".log"]
        assert not left or left == [str(self._memory / f"checkpoint-{os.getuid()}")], left
        found = forked(lambda: inspect(self._progress.uri))
        assert found == Findings(self._progress.told, ()), found

    def close(self) -> None:
        """End what is left of this soak's own processes."""
        for pid in children_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        reap(is_last=True)


def reap(*, is_last: bool = False) -> None:
    """Let processes go that have ended; the last time, wait for all."""
    while True:
        try:
            pid, _ = os.waitpid(-1, 0 if is_last else os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.kill_soak")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--uri", help="where the checkpoints lie; a folder beside the progress file otherwise")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    progress = Progress.begun(folder / "progress.json", options.seed, options.uri or str(folder / "store"))
    if progress.done == 0:
        for each in ("store", "events.rank-0.jsonl", "events.rank-1.jsonl"):
            subprocess.run(["rm", "-rf", str(folder / each)], check=True)
    memory = Path(f"/dev/shm/kill-soak-{short_digest(str(folder))}")
    memory.mkdir(exist_ok=True)
    os.environ.update(CHECKPOINT_MEMORY=str(memory), CHECKPOINT_EVENTS=str(folder / "events"))
    soak = Soak(folder, progress, memory)
    try:
        soak.run(options.kills)
    finally:
        soak.close()
        shutil.rmtree(memory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
