# SPDX-License-Identifier: Apache-2.0
"""A run under the real command line, as a person at a terminal and a hostile machine would treat it.

Everything that a run starts inherits the folder in $SUPERVISOR_HOME, which is the test's own: by it the processes of
this run are told from those of any other test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor import inspection
from supervisor.agent import folders, processes
from supervisor.controller.api import ControllerError, JournalRecord
from supervisor.core.api import decisions, events

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "tests" / "data" / "scripts"
BIN = Path(sys.executable).parent
DEADLINE_S = 120.0
RUN = "run"
POLICY = """\
[launch]
report_interval_s = 0.2
"""
_POLL_S = 0.05


@dataclass(frozen=True)
class Rank:
    pid: int
    rank: int
    attempt: int

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


class Supervised:
    """One run in `folder`: its supervisor, what it prints, and what is left of it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.folder = self.home / "runs" / RUN
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.config = folder / "supervisor.toml"
        self.config.write_text(POLICY)
        self.environment = {
            **os.environ,
            "SUPERVISOR_HOME": str(self.home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }
        self._output = folder / "supervisor.out"
        self._supervisors: list[subprocess.Popen[bytes]] = []

    def configure(self, text: str) -> None:
        """Settings in place of the default ones, beyond quick reports."""
        self.config.write_text(POLICY + text)

    def start(self, *command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        words = [*self._words("run"), "-c", str(self.config), "--name", RUN, *options, "--", *command]
        with self._output.open("ab") as output:
            started = subprocess.Popen(
                words, cwd=self.work, env=self.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        self._supervisors.append(started)
        return started

    def run(self, *command: str, options: tuple[str, ...] = ()) -> int:
        """Start, and wait for the end."""
        self.start(*command, options=options)
        return self.end()

    def end(self) -> int:
        """Wait until the newest supervisor has ended; its exit code."""
        try:
            return self._supervisors[-1].wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the supervisor has not ended within {DEADLINE_S:.0f} s:\n{self.output}") from None

    def kill(self) -> None:
        """kill -9 of the supervisor."""
        self._supervisors[-1].kill()
        self._supervisors[-1].wait()

    def signal(self, number: signal.Signals) -> None:
        self._supervisors[-1].send_signal(number)

    @property
    def is_running(self) -> bool:
        return self._supervisors[-1].poll() is None

    @property
    def output(self) -> str:
        """All that the run's supervisors have printed."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command of the command line, such as `pause`; its output is text."""
        return subprocess.run(
            self._words(*words), cwd=self.work, env=self.environment, capture_output=True, text=True, timeout=DEADLINE_S
        )

    def order(self, *words: str) -> str:
        """An order that has to be taken; what was answered."""
        answer = self.ask(*words)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    @property
    def status(self) -> dict[str, Any]:
        """Raises ControllerError while there is no run yet."""
        answer = self.ask("status", "--format", "json")
        if answer.returncode != 0:
            raise ControllerError(answer.stderr)
        value: dict[str, Any] = json.loads(answer.stdout)
        return value

    @property
    def story(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.order("story", "--format", "json"))
        return value

    @property
    def journal(self) -> tuple[JournalRecord, ...]:
        return inspection.records(self.folder)

    def launches(self) -> list[decisions.Launch]:
        """Each attempt once: a decision that is repeated is not written again."""
        return [each for record in self.journal for each in record.decisions if isinstance(each, decisions.Launch)]

    def events(self, kind: type[events.Event]) -> list[Any]:
        return [record.event for record in self.journal if isinstance(record.event, kind)]

    def steps(self, attempt: int) -> list[int]:
        """Steps that were recorded of an attempt, in order."""
        return [row.step for row in inspection.step_rows(self.folder) if row.attempt == attempt]

    def positions(self, attempt: int) -> list[int | None]:
        """Batches that an attempt trained on, in order."""
        return [row.position for row in inspection.step_rows(self.folder) if row.attempt == attempt]

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """Poll until `holds` is true, and return what it gave; the supervisor may not end meanwhile."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            is_running = self.is_running
            try:
                found = holds()
            except (ControllerError, OSError):
                found = None
            if found:
                return found
            assert is_running, f"the supervisor ended before {what}:\n{self.output}"
            time.sleep(_POLL_S)
        raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}\n{self.output}")

    def wait_for_step(self, step: int, attempt: int = 1) -> None:
        self.until(f"step {step} of attempt {attempt}", lambda: max(self.steps(attempt), default=0) >= step)

    def wait_for_output(self, text: str) -> None:
        self.until(f"the output has {text!r}", lambda: text in self.output)

    def wait_for_attempt(self, attempt: int) -> None:
        self.until(f"attempt {attempt} runs", lambda: [each for each in self.ranks() if each.attempt == attempt])

    def rank_output(self, attempt: int, rank: int = 0, stream: str = "stdout") -> str:
        return (self.folder / "attempts" / f"{attempt:04d}" / f"rank-{rank}" / f"{stream}.log").read_text()

    def processes(self) -> list[processes.ProcessStat]:
        """Everything that lives of this run, its supervisor too."""
        found = (processes.stat(each.pid) for each in processes.carrying("SUPERVISOR_HOME", str(self.home)))
        return [each for each in found if each is not None and not each.is_gone]

    def ranks(self) -> list[Rank]:
        """The living processes that a launcher has given a rank."""
        return sorted(self._ranks(), key=lambda each: (each.attempt, each.rank))

    def _ranks(self) -> Iterator[Rank]:
        for each in self.processes():
            environment = processes.environment_of(each.pid)
            if {"RANK", "SUPERVISOR_ATTEMPT"} <= environment.keys():
                yield Rank(each.pid, int(environment["RANK"]), int(environment["SUPERVISOR_ATTEMPT"]))

    def rank(self, rank: int) -> Rank:
        """The newest process of that rank."""
        return [each for each in self.ranks() if each.rank == rank][-1]

    def agents(self) -> list[int]:
        """Process ids of the node agents, of which there may never be two."""
        return [each.pid for each in self.processes() if b"supervisor.agent\0" in _command_line(each.pid)]

    def shared_memory(self) -> Path:
        """Where the run keeps what its ranks map into memory."""
        where = folders.AgentFolders(self.folder, RUN, "node-0")
        return folders.node_folder(folders.shared_root(self.environment), where).parent

    def close(self) -> None:
        """End what is left, whatever the test has come to."""
        deadline = time.monotonic() + DEADLINE_S
        while (left := self.processes()) and time.monotonic() < deadline:
            for each in left:
                processes.send(each.identity, signal.SIGKILL)
            time.sleep(_POLL_S)
        for supervisor in self._supervisors:
            supervisor.wait(DEADLINE_S)

    @staticmethod
    def _words(*words: str) -> list[str]:
        return [str(BIN / "supervisor"), *words]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def torchrun(script: Path, *arguments: str, ranks: int = 2) -> tuple[str, ...]:
    return ("torchrun", "--standalone", "--nproc-per-node", str(ranks), str(script), *arguments)
