# SPDX-License-Identifier: Apache-2.0
"""Keeps a standby: an interpreter that has imported torch and becomes the next attempt's launcher.

A standby may only stand in for a command that it equals in everything that an interpreter reads before the hand-over:
program, folder, and the variables that Python, the loader, torch and its libraries look at when they are loaded. It
dies with the agent, because its end of the socket closes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pkgutil
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.agent import launch, processes, script_head
from supervisor.agent.api import LaunchSpec
from supervisor.agent.processes import ProcessId
from supervisor.agent.torchrun_command import TorchrunCommand

_log = logging.getLogger(__name__)

MODES = ("off", "launcher", "ranks")
_BEGIN_S = 5.0
_END_S = 5.0
_READ_AT_LOAD = (
    "PYTHON",
    "LD_",
    "LC_",
    "LANG",
    "CUDA",
    "NVIDIA",
    "TORCH",
    "PYTORCH",
    "NCCL",
    "GLOO",
    "OMP",
    "MKL",
    "KMP",
    "GOMP",
    "OPENBLAS",
    "MALLOC",
    "HIP",
    "HSA",
    "ROC",
    "TRITON",
)
_PER_ATTEMPT = (
    "SUPERVISOR_RANK_FOLDER",
    "SUPERVISOR_ATTEMPT",
    "CHECKPOINT_EVENTS",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "PET_LOG_DIR",
)


class WarmError(Exception):
    """There can be no standby, or this one cannot be used; the message says why, for the start-up note."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a standby is started with; two equal plans may use one standby."""

    mode: str
    interpreter: tuple[str, ...]
    working_folder: str
    ranks: int
    """Ranks to fork, 0 in mode `launcher`."""
    modules: tuple[str, ...]
    launcher_folder: str
    """First of the launcher's module path: the folder of torchrun, or the working folder behind `python -m`."""
    script_folder: str
    loaded_with: tuple[tuple[str, str], ...]


def plan(spec: LaunchSpec, command: TorchrunCommand | None, environment: Mapping[str, str]) -> tuple[Plan, str]:
    """The plan for a command, and a note when it falls back from `ranks` to `launcher`. Raises WarmError."""
    if spec.warm not in MODES:
        raise WarmError(f"{spec.warm!r} is no mode; the modes are {', '.join(MODES)}")
    if command is None:
        raise WarmError("the command is not torchrun")
    interpreter, launcher_folder = _interpreter(command, spec.working_folder, environment)
    script = Path(spec.working_folder, command.script or "")
    why_not = _why_not_ranks(command, script) if spec.warm == "ranks" else ""
    forks = spec.warm == "ranks" and not why_not
    loaded_with = standby_environment(environment, command if forks else None)
    return Plan(
        mode="ranks" if forks else "launcher",
        interpreter=interpreter,
        working_folder=spec.working_folder,
        ranks=command.ranks or 0 if forks else 0,
        modules=("torch", "torch.distributed.run", *(script_head.imported_ahead(script) if forks else ())),
        launcher_folder=launcher_folder,
        script_folder=str(script.resolve().parent) if forks else "",
        loaded_with=tuple(sorted((k, v) for k, v in loaded_with.items() if k.startswith(_READ_AT_LOAD))),
    ), (f"ranks are not forked from a warm interpreter: {why_not}" if why_not else "")


def standby_environment(environment: Mapping[str, str], forked: TorchrunCommand | None) -> dict[str, str]:
    """Without what belongs to one attempt; `forked` is the command whose ranks are forked.

    torchrun gives its ranks OMP_NUM_THREADS=1 when there are several and nothing is set (torch/distributed/run.py). A
    forked rank has loaded its libraries long before, so the standby is started with it already. A CUDA device count
    by the driver would spoil the ranks that are forked later; by NVML it does not.
    """
    result = {name: value for name, value in environment.items() if name not in _PER_ATTEMPT}
    if forked is not None:
        if (forked.ranks or 0) > 1:
            result.setdefault("OMP_NUM_THREADS", "1")
        result.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return result


def python_of(script: Path) -> tuple[str, ...]:
    """The interpreter that a console script names in its first lines. Raises WarmError."""
    try:
        with script.open("rb") as file:
            head = file.read(1024).decode(errors="replace").splitlines()
    except OSError as error:
        raise WarmError(f"cannot read {script}: {error.strerror}") from error
    if head and head[0].startswith("#!"):
        words = head[0][2:].split()
        if words and Path(words[0]).name == "env":
            words = words[2:] if words[1:2] == ["-S"] else words[1:]
        if words and Path(words[0]).name.startswith("python"):
            return tuple(words)
        if len(head) > 1 and head[1].startswith("'''exec' "):
            # pip writes this when the interpreter's path is too long or holds a space.
            return (shlex.split(head[1][len("'''exec' ") :])[0],)
    raise WarmError(f"cannot tell which Python {script} uses from its first line")


class Standby:
    """One standby process, used by the agent's loop only."""

    def __init__(self, plan: Plan, environment: Mapping[str, str], *, folder: Path, exit_file: Path) -> None:
        """Start importing. Raises WarmError."""
        self.plan = plan
        self.exit_file = exit_file
        program = folder / "standby.py"
        ours, theirs = socket.socketpair()
        setup = json.dumps({"path0": plan.script_folder or plan.launcher_folder, "modules": plan.modules})
        command = (*plan.interpreter, "-u", str(program), str(theirs.fileno()), setup)
        try:
            program.write_bytes(pkgutil.get_data("supervisor.agent", "standby.py") or b"")
            with (folder / "standby.log").open("ab") as output:
                self.process = subprocess.Popen(
                    launch.wrapped(command, exit_file),
                    cwd=plan.working_folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise WarmError(f"the standby could not be started: {error}") from error
        finally:
            theirs.close()
        self._line = ours
        self._line.setblocking(False)
        self._received = b""

    def is_ready(self) -> bool:
        """Whether the imports are done."""
        self._receive()
        return self._received.startswith(b"ready\n") and self.process.poll() is None

    def check(self, wanted: Plan) -> None:
        """Raises WarmError when it cannot stand in now for a command of that plan."""
        if wanted != self.plan:
            raise WarmError("the command or its environment has changed since the standby was started")
        if not self.is_ready():
            raise WarmError("the standby was not ready yet")

    def is_running(self) -> bool:
        return self.process.poll() is None

    def ids(self) -> tuple[ProcessId, ProcessId]:
        """The wrapper and the standby itself. Raises WarmError."""
        wrapper = processes.identity_of(self.process.pid)
        launcher = launch.launcher_of(wrapper) if wrapper else None
        if wrapper is None or launcher is None:
            raise WarmError("the standby had died")
        return wrapper, launcher

    def hand_over(self, spec: LaunchSpec, command: TorchrunCommand, environment: Mapping[str, str]) -> None:
        """Make it the launcher. Raises WarmError, and nothing of the attempt runs then."""
        stdout, stderr = launch.output_files(spec)
        order = {
            "module": command.module,
            "argv": [command.program, *command.arguments],
            "environment": {**dict(environment), **self._kept(environment)},
            "stdout": str(stdout),
            "stderr": str(stderr),
            "ranks": self.plan.ranks,
            "path0": self.plan.launcher_folder,
        }
        try:
            self._line.settimeout(_BEGIN_S)
            self._line.sendall(json.dumps(order).encode() + b"\n")
            while b"begun\n" not in self._received:
                part = self._line.recv(64)
                if not part:
                    raise WarmError("the standby died at the hand-over")
                self._received += part
        except OSError as error:
            raise WarmError(f"the standby did not take over: {error}") from error
        finally:
            self._line.close()

    def end(self) -> None:
        """Let it go; it has nothing to save."""
        self._line.close()
        wrapper = processes.identity_of(self.process.pid)
        if wrapper is not None:
            for pid in processes.descendants(wrapper.pid):
                process = processes.identity_of(pid)
                if process is not None:
                    processes.send(process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # One that hangs in a file system does not even die of SIGKILL, and the agent has more to do.
            self.process.wait(_END_S)
        self.exit_file.unlink(missing_ok=True)

    def _kept(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What only the standby was given stays: its libraries were loaded with it."""
        return {name: value for name, value in self.plan.loaded_with if name not in environment}

    def _receive(self) -> None:
        try:
            self._received += self._line.recv(64)
        except BlockingIOError:
            return
        except OSError as error:
            _log.info("standby is gone: %s", error)


def _why_not_ranks(command: TorchrunCommand, script: Path) -> str:
    for name, why in (("module", "-m"), ("no-python", "--no-python"), ("run-path", "--run-path")):
        if command.value(name) is not None:
            return f"that needs a plain script, and the command uses {why}"
    if command.script is None or not command.script.endswith(".py"):
        return "that needs a script whose name ends in .py"
    if command.ranks is None:
        return "that needs --nproc-per-node as a number"
    if command.program == "torch.distributed.launch":
        return "that needs torchrun, not torch.distributed.launch"
    if script_head.sets_environment_first(script):
        return f"{script.name} sets environment variables before its imports, which would come too late"
    return ""


def _interpreter(
    command: TorchrunCommand, working_folder: str, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    path = environment.get("PATH", os.defpath)
    words: tuple[str, ...] = command.interpreter
    folder = working_folder
    if not words:
        found = shutil.which(
            str(Path(working_folder, command.program)) if "/" in command.program else command.program, path=path
        )
        if found is None:
            raise WarmError(f"there is no program {command.program!r} on the PATH")
        words, folder = python_of(Path(found)), str(Path(found).resolve().parent)
    if shutil.which(words[0], path=path) is None:
        raise WarmError(f"there is no interpreter {words[0]}")
    return words, folder
