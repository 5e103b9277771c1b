# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: where everything lies that outlives the controller, and the lock that lets one controller in.

run.json          what the run is          journal.jsonl    what happened, the run's memory
controller.json   where agents dial in     steps.csv        loss and throughput of every step
lock              held by the controller   FENCE.json       newest attempt, until the checkpoint URI is known
attempts/0001/    launcher output, rank and kernel logs    incidents/0001/  stacks, dumps, diagnosis, correction
agents/           output of the node agents
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.controller.api import ControllerError
from supervisor.controller.disk import FULL_ERRORS

LOCK_TRIES, LOCK_PAUSE_S = 10, 0.05


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def steps(self) -> Path:
        return self.path / "steps.csv"

    @property
    def controller(self) -> Path:
        return self.path / "controller.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def description(self) -> Path:
        return self.path / "run.json"

    @property
    def agents(self) -> Path:
        return self.path / "agents"

    @property
    def scheduler(self) -> Path:
        """For the scheduler's own files."""
        return self.path / "scheduler"

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / f"{number:04d}"

    def incident(self, number: int) -> Path:
        return self.path / "incidents" / f"{number:04d}"

    def make(self) -> None:
        """Create the folder and see that it can be used; raises ControllerError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self.path, prefix=".write-test-"):
                pass
        except OSError as error:
            raise ControllerError(
                f"the run folder {self.path} cannot be written: {error.strerror}; "
                "free space, fix its rights, or name another with --folder"
            ) from None
        for file in (self.journal, self.steps, self.lock, self.controller, self.description):
            if file.is_dir():
                raise ControllerError(
                    f"{file} is a folder, but the run keeps a file there; move it away, or name another run folder "
                    "with --folder"
                )

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Raises ControllerError for what the disk or the rights of the run folder refuse meanwhile."""
        try:
            yield
        except OSError as error:
            if error.errno in FULL_ERRORS:
                raise ControllerError(
                    f"the disk of {self.path} is full: {error.strerror}; free space on it or raise its quota, then "
                    "give the same command again: it goes on, and takes over what still runs"
                ) from error
            if not str(error.filename).startswith(str(self.path)):
                raise
            raise ControllerError(
                f"{error.filename} cannot be used: {error.strerror}; mend that or its rights, then give the same "
                "command again"
            ) from error

    def read_description(self) -> dict[str, Any]:
        """What run.json says, empty when there is none."""
        return read_json(self.description)

    def write_description(self, description: dict[str, Any]) -> None:
        write_json(self.description, description)


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when it is missing or torn."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: dict[str, Any], mode: int = 0o600) -> None:
    """All or nothing, durable; raises OSError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


class RunLock:
    """Held by the one controller of a run; the kernel gives it back when the process dies."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.lock
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked_soon(self._descriptor):
            os.close(self._descriptor)
            raise ControllerError(
                f"run {folder.path.name} is already supervised by {holder(folder)}; "
                "watch it with `supervisor status`, end it with `supervisor stop`, or choose another --name"
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def _locked_soon(descriptor: int) -> bool:
    """`status` holds the lock for a moment to see whether anybody does, so one refusal is not the last word."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False


def holder(folder: RunFolder) -> str:
    """Who supervises the run, as `pid N on HOST`, or `none`."""
    path = folder.lock
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return "none"
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "none"
        return path.read_text().strip() or "another process"
    finally:
        os.close(descriptor)
