# SPDX-License-Identifier: Apache-2.0
"""Starts a launcher that outlives the agent.

    agent -> sh (own session, keeps the exit code in a file) -> launcher (torchrun, or any command) -> ranks

Neither output nor exit code goes through the agent: output is appended to files, and the shell writes the exit code, so
killing the agent takes nothing from the attempt.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.agent import processes
from supervisor.agent.api import LaunchSpec, RankExit
from supervisor.agent.processes import ProcessId

_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_KEEP_EXIT_CODE = (
    # The traps are commands, not '': an ignored signal would stay ignored in the launcher.
    # Builtins only: a child would be one of the processes that a stop ends. Nobody reads before the wrapper is gone.
    # Its own standard error is nowhere: a shell says "Killed" in the middle of what the launcher was writing.
    # The command's redirection would hold for dash's own words too, were it not for the parentheses.
    "exec 3>&2 2>/dev/null; trap : TERM INT HUP QUIT; "
    '(exec "$@" 2>&3 3>&-); code=$?; printf %s "$code" >"$0"; exit "$code"'
)
_CHILD_WAIT_S = 2.0
_FAILURE = re.compile(r"exitcode\s*: (-?\d+) \(pid: (\d+)\)")
_ERRORS_READ_CHARS = 1 << 20
TORCHRUN_LOGS = "torchrun"
"""Folder below the attempt's in which torchrun keeps its ranks' logs."""


class LaunchError(Exception):
    """The command cannot be started; the message says why and what to do."""


def will_pass(error: BaseException) -> bool:
    """Whether the operating system refused for want of room, memory or processes, which may be there later."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING


def environment(
    own: Mapping[str, str], spec: LaunchSpec, *, run: str, attempt: int, rank_folder: Path, is_torchrun: bool
) -> dict[str, str]:
    """The launcher's whole environment; pure.

    TORCH_NCCL_ASYNC_ERROR_HANDLING is 3 because torchrun's own 1 aborts the communicators before the flight recorder
    has been dumped (pytorch#121055). The flight recorder's variables are those of torch/csrc/distributed/c10d.
    """
    attempt_folder = Path(spec.attempt_folder)
    wanted = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    result = {**wanted, **own, **dict(spec.environment)}
    result |= {
        "SUPERVISOR_RANK_FOLDER": str(rank_folder),
        "SUPERVISOR_RUN": run,
        "SUPERVISOR_ATTEMPT": str(attempt),
        "CHECKPOINT_EVENTS": str(rank_folder / "checkpoint"),
        "TORCH_FR_DUMP_TEMP_FILE": str(attempt_folder / "flight-recorder" / "rank-"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(rank_folder / "nccl-"),
    }
    if is_torchrun:
        result |= {
            "PET_MAX_RESTARTS": "0",
            "PET_LOG_DIR": str(attempt_folder / TORCHRUN_LOGS),
            "PET_REDIRECTS": "3",
            "PET_MONITOR_INTERVAL": "0.1",
        }
    return result


def check(spec: LaunchSpec, environment: Mapping[str, str]) -> None:
    """Raises LaunchError when the working folder or the program is not there."""
    if not spec.command:
        raise LaunchError("the command is empty; name what to launch behind --")
    folder = Path(spec.working_folder)
    if not folder.is_dir():
        raise LaunchError(f"the working folder {folder} is not there on this node; mount or make it")
    program = spec.command[0]
    if "/" in program:
        path = folder / program
        if not path.exists():
            raise LaunchError(f"there is no program {path}; correct the command or install it on this node")
        if not os.access(path, os.X_OK):
            raise LaunchError(f"{path} may not be executed; run chmod +x on it, or name its interpreter first")
    elif shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
        raise LaunchError(f"there is no program {program!r} on the PATH of this node; install it or name its full path")


def make_attempt_folder(spec: LaunchSpec) -> None:
    """Raises LaunchError."""
    folder = Path(spec.attempt_folder)
    try:
        for each in (folder, folder / TORCHRUN_LOGS, folder / "flight-recorder"):
            each.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"cannot make {folder}: {error.strerror}; make room or make it writable") from error


def output_files(spec: LaunchSpec) -> tuple[Path, Path]:
    """The launcher's own standard output and error."""
    return Path(spec.attempt_folder) / "launcher.out", Path(spec.attempt_folder) / "launcher.err"


def wrapped(command: Sequence[str], exit_file: Path) -> tuple[str, ...]:
    """The command within a shell that keeps its exit code; 128 + n there is signal n."""
    return ("/bin/sh", "-c", _KEEP_EXIT_CODE, str(exit_file), *command)


def start(spec: LaunchSpec, environment: Mapping[str, str], exit_file: Path) -> subprocess.Popen[bytes]:
    """The wrapper, started in a session of its own. Raises LaunchError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    opened: list[int] = []
    try:
        opened += [os.open(path, flags, 0o644) for path in output_files(spec)]
        return subprocess.Popen(
            wrapped(spec.command, exit_file),
            cwd=spec.working_folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=opened[0],
            stderr=opened[1],
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"cannot start {spec.command[0]}: {error}; look at the node's free memory") from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def launcher_of(wrapper: ProcessId) -> ProcessId | None:
    """The wrapper's only child; None when it has ended already."""
    until = time.monotonic() + _CHILD_WAIT_S
    while time.monotonic() < until and processes.is_alive(wrapper):
        for pid in processes.children(wrapper.pid):
            return processes.identity_of(pid)
        time.sleep(0.002)
    return None


def kept_exit_code(exit_file: Path) -> int | None:
    """The launcher's exit code, negative for a signal; None when the wrapper was killed before it could write."""
    try:
        code = int(exit_file.read_text())
    except (OSError, ValueError):
        return None
    return 128 - code if 128 < code <= 128 + 64 else code


def failure_codes(text: str) -> dict[int, int]:
    """Exit codes by process id, from the block that torchrun prints when ranks fail (ChildFailedError.format_msg)."""
    return {int(pid): int(code) for code, pid in _FAILURE.findall(text)}


def with_codes(exits: tuple[RankExit, ...], launcher_errors: Path) -> tuple[RankExit, ...]:
    """The exits with the codes that torchrun knows and we could not read in time."""
    if all(each.exit_code is not None for each in exits):
        return exits
    try:
        codes = failure_codes(launcher_errors.read_text(errors="replace")[-_ERRORS_READ_CHARS:])
    except OSError:
        return exits
    return tuple(each if each.exit_code is not None else replace(each, exit_code=codes.get(each.pid)) for each in exits)
