# SPDX-License-Identifier: Apache-2.0
"""This machine as a cluster: every node of a run is one agent process here.

Agents are started in sessions of their own and outlive whoever asked for them; a file a run names each by process id
and start time. Whatever an agent starts inherits a variable by which `cancel` finds it even when its agent is dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from schedulers.api import Allocation, AllocationSpec, NodeState, NodeStatus, SchedulerError

MARK = "LOCAL_SCHEDULER_ALLOCATION"
"""Variable in the environment of all that belongs to an allocation; its value is the allocation's identity."""
_PROC = Path("/proc")
_LEAVE_S = 20.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class _Agent:
    """`started` is field 22 of /proc/PID/stat: ids are given out again."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        return _stat(self.pid) == (self.started, True)


class LocalScheduler:
    """All state is below `folder`; several of these, in several processes, may use one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[subprocess.Popen[bytes]] = []

    def submit(self, spec: AllocationSpec) -> Allocation:
        if spec.nodes < 1:
            raise SchedulerError(f"run {spec.run} asks for {spec.nodes} nodes; ask for 1 or more")
        with self._locked():
            agents = self._read(spec.run)
            names = self._names(spec, agents)
            for name in names:
                if name not in agents or not agents[name].is_alive():
                    agents[name] = self._found(spec, name) or self._start(spec, name)
                    self._write(spec.run, agents)
            if list(agents)[: len(names)] != names:
                # The agents of nodes that are left out now stay known, so that `cancel` ends them, too.
                agents = {**{name: agents[name] for name in names}, **agents}
                self._write(spec.run, agents)
            return Allocation(spec.run, self._mark(spec.run), tuple(names))

    def find(self, run: str) -> Allocation | None:
        agents = self._read(run)
        return self._allocation(run, agents) if any(agent.is_alive() for agent in agents.values()) else None

    def status(self, allocation: Allocation) -> tuple[NodeStatus, ...]:
        agents = self._read(allocation.run)
        self._collect_ended()
        return tuple(_status(node, agents.get(node)) for node in allocation.nodes)

    def cancel(self, allocation: Allocation) -> None:
        with self._locked():
            agents = [agent for agent in self._read(allocation.run).values() if agent.is_alive()]
            for agent in agents:
                _signal(agent.pid, signal.SIGTERM)
            self._wait_until_gone(agents)
            _kill_marked(self._mark(allocation.run))
            self._collect_ended()
            with self._telling(f"cannot remove the record of run {allocation.run}"):
                self._path(allocation.run).unlink(missing_ok=True)

    def cordon(self, node: str, why: str) -> None:
        with self._locked():
            self._write_json(self._cordon_path, {**self.cordoned(), node: why})

    def uncordon(self, node: str) -> None:
        with self._locked():
            self._write_json(self._cordon_path, {name: why for name, why in self.cordoned().items() if name != node})

    def cordoned(self) -> dict[str, str]:
        return {str(node): str(why) for node, why in self._read_json(self._cordon_path).items()}

    def _names(self, spec: AllocationSpec, agents: Iterable[str]) -> list[str]:
        """The allocation's own nodes that are not cordoned, then fresh ones: one machine can be cut into many.

        A node that is given back does not take the place of the one that stepped in for it: an attempt may run there.
        """
        held, count = {*self.cordoned(), *spec.excluded}, spec.nodes
        own = [name for name in agents if name not in held][:count]
        fresh = (name for number in itertools.count() if (name := f"node-{number}") not in held and name not in own)
        return [*own, *itertools.islice(fresh, count - len(own))]

    def _found(self, spec: AllocationSpec, node: str) -> _Agent | None:
        """The agent that was started by someone who was killed before it could be written down."""
        command = [os.fsencode(word) for word in _command(spec, node)]
        for pid in _marked(self._mark(spec.run)):
            with contextlib.suppress(OSError):
                is_it = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1] == command
                if is_it and (found := _stat(pid)) is not None and os.getsid(pid) == pid:
                    return _Agent(pid, found[0])
        return None

    def _start(self, spec: AllocationSpec, node: str) -> _Agent:
        command = _command(spec, node)
        environment = {**os.environ, **dict(spec.environment), MARK: self._mark(spec.run)}
        log = Path(spec.log_folder, f"{node}.log")
        with self._telling(f"cannot start the agent of {node} by {command[:1]}"):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                child = subprocess.Popen(
                    command,
                    cwd=spec.working_folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        self._children.append(child)
        found = _stat(child.pid)
        return _Agent(child.pid, found[0] if found is not None else 0)

    def _wait_until_gone(self, agents: list[_Agent]) -> None:
        until = time.monotonic() + _LEAVE_S
        while any(agent.is_alive() for agent in agents) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _collect_ended(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]

    def _mark(self, run: str) -> str:
        return str(self._path(run))

    def _path(self, run: str) -> Path:
        return self._folder.absolute() / "allocations" / f"{quote(run, safe='')}.json"

    @property
    def _cordon_path(self) -> Path:
        return self._folder / "cordoned.json"

    def _allocation(self, run: str, agents: dict[str, _Agent]) -> Allocation:
        return Allocation(run, self._mark(run), tuple(agents))

    def _read(self, run: str) -> dict[str, _Agent]:
        path = self._path(run)
        try:
            return {str(k): _Agent(int(v["pid"]), int(v["started"])) for k, v in self._read_json(path).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise SchedulerError(f"{path} does not name agents ({error!r}); end them and remove the file") from error

    def _write(self, run: str, agents: dict[str, _Agent]) -> None:
        self._write_json(self._path(run), {k: {"pid": v.pid, "started": v.started} for k, v in agents.items()})

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise SchedulerError(f"cannot read {path}: {error}; repair or remove it") from error
        if not isinstance(content, dict):
            raise SchedulerError(f"{path} holds no object; repair or remove it")
        return content

    def _write_json(self, path: Path, content: object) -> None:
        with self._telling(f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            partial.write_text(json.dumps(content))
            partial.replace(path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Two submits at once must not both start an agent."""
        with self._telling(f"cannot lock {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @staticmethod
    @contextlib.contextmanager
    def _telling(what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SchedulerError(f"{what}: {error}; make it possible for this user, then try again") from error


def _command(spec: AllocationSpec, node: str) -> list[str]:
    return [word.replace("{node}", node) for word in spec.agent_command]


def _status(node: str, agent: _Agent | None) -> NodeStatus:
    if agent is None:
        return NodeStatus(node, NodeState.ENDED, "its allocation was cancelled")
    if agent.is_alive():
        return NodeStatus(node, NodeState.RUNNING)
    return NodeStatus(node, NodeState.ENDED, f"its agent (pid {agent.pid}) has ended; submit starts it again")


def _stat(pid: int) -> tuple[int, bool] | None:
    """Start time in ticks and whether it runs, None when there is no such process."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[19]), fields[0] not in "ZXx"
    except (OSError, ValueError, IndexError):
        return None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _marked(mark: str) -> list[int]:
    wanted = os.fsencode(f"{MARK}={mark}")
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (
                    wanted in (entry / "environ").read_bytes().split(b"\0")
                    and (_stat(int(entry.name)) or (0, False))[1]
                ):
                    found.append(int(entry.name))
    return found


def _kill_marked(mark: str) -> None:
    """Until nothing is left, because what dies may just have started something."""
    until = time.monotonic() + _LEAVE_S
    while (pids := _marked(mark)) and time.monotonic() < until:
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
