# SPDX-License-Identifier: Apache-2.0
"""Real launches to break: a supervised one and torchrun alone, both read by the same rings of the training client.

The time of a step is the one that the rank itself wrote when the step was done, so both launches are measured by the
same clock at the same place, and looking seldom costs no precision.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import ROOT
from supervisor import inspection
from supervisor.agent import record
from supervisor.controller import story
from supervisor.controller.api import JournalRecord
from supervisor.core.incidents import Incident
from supervisor.training.control import ControlPage
from supervisor.training.records import Kind
from supervisor.training.ring import RingError, RingReader

LOOK_S = 0.05
WAIT_S = 180.0
"""For anything that has to happen: a start-up, a recovery, a standby."""
END_S = 60.0
LAST_WORDS = 12
"""Lines of a launch's output that its error shows."""

POLICY = """\
[policy]
backoff_s = 0
same_failure_limit = 1000000
[policy.budgets]
infrastructure = { count = 100000, window_s = 60 }
framework = { count = 100000, window_s = 60 }
other = { count = 100000, window_s = 60 }
"""
"""The same rank is broken again and again, which no budget would allow."""


class LaunchError(Exception):
    """A launch did not do what the measurement needs; the message ends with the launch's own last words."""


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first step that a rank completed after it had started (again)."""

    step: int
    at: float
    """Unix seconds at which it was done."""
    started_at: float
    """Unix seconds at which the rank had made its ring."""


@dataclass
class Launch:
    """A training launch in a folder of its own; started by `running`."""

    name: str
    folder: Path
    command: Sequence[str]
    rank_folder: Callable[[], Path | None]
    """Where the rings of the present ranks are."""
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @contextlib.contextmanager
    def running(self) -> Iterator[Launch]:
        """Start it, and end it and everything that it started."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.prepare()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        python_path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, "PATH": path, "PYTHONPATH": python_path, **self.environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield self
        finally:
            self.end()

    def prepare(self) -> None:
        self.folder.mkdir(parents=True)

    def end(self) -> None:
        """SIGINT twice, which asks politely and then ends at once; what does not end is killed."""
        if self.process is None:
            return
        for _ in range(2):
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
                time.sleep(0.5)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait_for(self, what: str, found: Callable[[], bool], limit_s: float = WAIT_S) -> None:
        """Raises LaunchError when it does not become true, or the launch ends first."""
        until = time.monotonic() + limit_s
        while not found():
            assert self.process is not None
            if self.process.poll() is not None:
                raise self._failed(f"ended with {self.process.returncode}, waiting for {what}")
            if time.monotonic() > until:
                raise self._failed(f"no {what} within {limit_s:.0f} s")
            time.sleep(LOOK_S)

    def ring(self, rank: int) -> RingReader | None:
        """A ring of the present attempt, None while it is not there; to be closed."""
        folder = self.rank_folder()
        if folder is None:
            return None
        try:
            return RingReader(folder / f"rank-{rank}.ring")
        except (OSError, RingError):
            return None

    def first_step(self, after: float = 0.0) -> FirstStep:
        """Of rank 0 of a start after that time (unix seconds), once it is done. Raises LaunchError."""
        seen: list[FirstStep] = []

        def look() -> bool:
            ring = self.ring(0)
            if ring is None:
                return False
            with contextlib.closing(ring):
                started_at = ring.identity.started_wall_ns / 1e9
                steps = [each for each in ring.poll() if each.kind is Kind.STEP] if started_at > after else []
                if steps:
                    seen.append(FirstStep(steps[0].step, steps[0].wall_ns / 1e9, started_at))
            return bool(seen)

        self.wait_for("first step", look)
        return seen[0]

    def step(self) -> int:
        """Newest step of rank 0, 0 before the first."""
        ring = self.ring(0)
        if ring is None:
            return 0
        with contextlib.closing(ring):
            return ring.activity().step

    def last_step_at(self, rank: int) -> float:
        """Unix seconds of the newest step that the rank has reported."""
        ring = self.ring(rank)
        if ring is None:
            raise self._failed(f"no ring of rank {rank}")
        with contextlib.closing(ring):
            return max(each.wall_ns for each in ring.poll() if each.kind is Kind.STEP) / 1e9

    def _failed(self, what: str) -> LaunchError:
        """The folder may be gone when somebody reads it, so the output's end goes along."""
        said = self.log.read_text(errors="replace").splitlines()[-LAST_WORDS:]
        return LaunchError("\n".join([f"{self.name}: {what}; its last words were", *said]))

    def send(self, rank: int, number: signal.Signals) -> float:
        """Signal a rank's process; unix seconds right before."""
        ring = self.ring(rank)
        if ring is None:
            raise self._failed(f"there is no rank {rank} to be signalled")
        with contextlib.closing(ring):
            at = time.time()
            os.kill(ring.identity.pid, number)
        return at


class SupervisedLaunch(Launch):
    """`supervisor run -- COMMAND` with the run folder `run` below the launch's own."""

    def __init__(self, name: str, folder: Path, command: Sequence[str], flags: Sequence[str] = ()) -> None:
        config = folder / "benchmark.toml"
        own = ("-c", str(config), "--name", name, "--folder", str(folder / "run"), "--output", "none", *flags)
        supervisor = (sys.executable, "-m", "supervisor", "run", *own, "--", *command)
        home = {"SUPERVISOR_HOME": str(folder / "home")}
        super().__init__(name, folder, supervisor, self._rank_folder, home)
        self._config = config

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def prepare(self) -> None:
        super().prepare()
        self._config.write_text(POLICY)

    def _rank_folder(self) -> Path | None:
        written = self.agent_record()
        return None if written is None or not written.rank_folder else Path(written.rank_folder)

    def agent_record(self) -> record.AttemptRecord | None:
        return record.read(self.run_folder / "agents" / "node-0" / "attempt.json")

    @property
    def standbys_ready(self) -> list[float]:
        """Unix seconds at which each standby had done its imports, as the agent's log tells."""
        log = self.run_folder / "agents" / "node-0.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [_time_of(line) for line in lines if "a standby is ready" in line]

    def journal(self) -> list[JournalRecord]:
        return list(inspection.records(self.run_folder))

    def incidents(self) -> tuple[Incident, ...]:
        told = story.tell(self.journal())
        return () if told is None else told.incidents

    def processes(self) -> dict[str, int]:
        """Process ids of the controller and of the agent."""
        assert self.process is not None
        allocation = json.loads(next((self.run_folder / "scheduler" / "allocations").glob("*.json")).read_text())
        return {"controller": self.process.pid, "agent": int(allocation["node-0"]["pid"])}


class PlainLaunch(Launch):
    """torchrun alone, which starts its ranks again in place; the client's rings go to a folder of our own."""

    def __init__(self, name: str, folder: Path, command: Sequence[str]) -> None:
        rings = folder / "rings"
        environment = {
            "SUPERVISOR_RANK_FOLDER": str(rings),
            "SUPERVISOR_RUN": name,
            "SUPERVISOR_ATTEMPT": "1",
            # The shared store makes gloo hang in the restart (torch 2.13), whatever the script does.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        super().__init__(name, folder, command, lambda: rings, environment)

    def prepare(self) -> None:
        super().prepare()
        rings = self.folder / "rings"
        rings.mkdir(mode=0o700)
        ControlPage.create(rings / "control").close()


def _time_of(line: str) -> float:
    """Unix seconds of a line of Python's logging, `2031-01-31 12:00:00,123 LEVEL text`, in local time."""
    whole, _, rest = line.partition(",")
    return time.mktime(time.strptime(whole, "%Y-%m-%d %H:%M:%S")) + int(rest[:3]) / 1e3
