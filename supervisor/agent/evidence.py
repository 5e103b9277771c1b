# SPDX-License-Identifier: Apache-2.0
"""Keeps what shows why ranks hang: Python stacks, flight recorder, process states; all ranks at once, within a limit.

Nothing here may wait for a rank. A rank in uninterruptible sleep can hold whoever touches it, so every rank has threads
of its own that are left behind when time is up, and py-spy reads without stopping its target.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.agent import processes
from supervisor.agent.record import KnownRank

_MAX_THREADS_SHOWN = 64
_PROC_FILES = ("status", "syscall", "stack")
_POLL_S = 0.02
_LOOKS = 5
_LOOK_S = 0.1
_STOPPED = {"T": "stopped", "t": "stopped by a debugger"}


@dataclass(frozen=True, slots=True)
class Kept:
    """Paths of the files that were written, and lines on what could not be had."""

    files: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Collection:
    """Filled by many threads; closed when time is up, after which late results are dropped."""

    folder: Path
    until: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_closed: bool = False

    def left_s(self) -> float:
        return max(0.05, self.until - time.monotonic())

    def write(self, name: str, content: bytes) -> None:
        with self.lock:
            if self.is_closed or not content:
                return
            path = self.folder / name
            try:
                path.write_bytes(content)
            except OSError as error:
                self.notes.append(f"cannot write {path}: {error.strerror}")
                return
            self.files.append(str(path))

    def note(self, line: str) -> None:
        with self.lock:
            if not self.is_closed and line not in self.notes:
                self.notes.append(line)


def find_py_spy() -> str | None:
    """Beside this interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def collect(
    ranks: Sequence[KnownRank], *, rank_folder: Path, recorder_folder: Path, evidence_folder: Path, limit_s: float
) -> Kept:
    """Keep the evidence of all ranks; returns within `limit_s` and a fraction of a second, whatever the ranks do."""
    collection = _Collection(evidence_folder, time.monotonic() + limit_s)
    try:
        evidence_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Kept((), (f"no evidence: cannot make {evidence_folder}: {error.strerror}",))
    py_spy = find_py_spy()
    if py_spy is None:
        collection.note("no stacks by py-spy: it is not installed on this node; pip install py-spy")
    tasks: list[Callable[[], None]] = []
    for rank in ranks:
        tasks += _tasks(collection, rank, py_spy, rank_folder, recorder_folder)
    threads = [threading.Thread(target=task, daemon=True, name="evidence") for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, collection.until - time.monotonic()))
    with collection.lock:
        collection.is_closed = True
        if any(thread.is_alive() for thread in threads):
            collection.notes.append(f"some of the evidence was not there within {limit_s:g} s")
        return Kept(tuple(sorted(collection.files)), tuple(collection.notes))


def _tasks(
    collection: _Collection, rank: KnownRank, py_spy: str | None, rank_folder: Path, recorder_folder: Path
) -> list[Callable[[], None]]:
    def by_proc() -> None:
        collection.write(f"process-rank-{rank.rank}.txt", describe(rank.process.pid).encode())

    def by_server() -> None:
        _ask_server(collection, rank, rank_folder / f"rank-{rank.rank}.sock")

    def by_nccl() -> None:
        _keep_dump(collection, rank, rank_folder, recorder_folder)

    def by_py_spy() -> None:
        if py_spy is not None:
            _dump_stacks(collection, rank, py_spy)

    return [by_proc, by_server, by_nccl, by_py_spy]


def describe(pid: int) -> str:
    """What /proc tells of a process and its threads; unreadable parts are left out."""
    parts = []
    for name in _PROC_FILES:
        with contextlib.suppress(OSError):
            parts.append(f"== {name}\n{(processes.PROC / str(pid) / name).read_text(errors='replace').strip()}")
    parts.append("== threads: id, name, state, sleeping in")
    with contextlib.suppress(OSError):
        threads = sorted((processes.PROC / str(pid) / "task").iterdir(), key=lambda folder: int(folder.name))
        parts += [_thread(folder) for folder in threads[:_MAX_THREADS_SHOWN]]
    return "\n".join(parts) + "\n"


def _thread(folder: Path) -> str:
    try:
        found = processes.parse_stat((folder / "stat").read_text(errors="replace"))
        channel = (folder / "wchan").read_text()
    except (OSError, ValueError):
        return f"{folder.name} gone or not ours to read"
    return f"{found.pid} {found.name} {found.state} {channel or '-'}"


def _dump_stacks(collection: _Collection, rank: KnownRank, py_spy: str) -> None:
    if not _can_answer(collection, rank):
        return
    command = [py_spy, "dump", "--nonblocking", "--pid", str(rank.process.pid)]
    # Output goes to files and the end is polled for: a child in uninterruptible sleep cannot be waited for.
    output = collection.folder / f".stacks-rank-{rank.rank}.part"
    errors = collection.folder / f".stacks-rank-{rank.rank}.err"
    try:
        with output.open("wb") as out, errors.open("wb") as err:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        while child.poll() is None and time.monotonic() < collection.until:
            time.sleep(_POLL_S)
        if child.poll() is None:
            child.kill()
            collection.note(f"py-spy did not answer for rank {rank.rank} in time")
        elif child.returncode != 0:
            reason = errors.read_text(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"]
            collection.note(f"py-spy could not read rank {rank.rank}: {reason[-1]}")
        collection.write(f"stacks-rank-{rank.rank}.txt", output.read_bytes())
    except OSError as error:
        collection.note(f"py-spy for rank {rank.rank}: {error}")
    finally:
        with contextlib.suppress(OSError):
            output.unlink(missing_ok=True)
            errors.unlink(missing_ok=True)


def _can_answer(collection: _Collection, rank: KnownRank) -> bool:
    """Whether it is worth asking: a process that is stopped or stays asleep never answers; /proc is the evidence."""
    state = _mute_state(rank)
    if state is not None:
        collection.note(f"rank {rank.rank} (pid {rank.process.pid}) is {state}, so it can give no stacks")
    return state is None


def _mute_state(rank: KnownRank) -> str | None:
    """A process that merely reads a file is in uninterruptible sleep for moments, so it is looked at repeatedly."""
    for _ in range(_LOOKS):
        found = processes.stat_of(rank.process)
        if found is None or found.is_gone:
            return "gone"
        if found.state != "D":
            return _STOPPED.get(found.state)
        time.sleep(_LOOK_S)
    return "in uninterruptible sleep"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket, which http.client does not know by itself."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask_server(collection: _Collection, known: KnownRank, path: Path) -> None:
    if not path.exists() or not _can_answer(collection, known):
        return
    rank = known.rank
    for request, name in (
        ("fr_trace_json", f"flight-recorder-rank-{rank}.json"),
        ("dump_traceback", f"python-stacks-rank-{rank}.txt"),
    ):
        connection = _UnixConnection(path, collection.left_s())
        try:
            connection.request("POST", f"/handler/{request}")
            response = connection.getresponse()
            body = response.read()
            if response.status == http.client.OK:
                collection.write(name, body)
            else:
                collection.note(f"the worker server of rank {rank} answered {request} with {response.status}")
        except (OSError, http.client.HTTPException) as error:
            collection.note(f"the worker server of rank {rank} did not answer {request}: {error}")
            return
        finally:
            connection.close()


def _keep_dump(collection: _Collection, known: KnownRank, rank_folder: Path, recorder_folder: Path) -> None:
    """Have NCCL's flight recorder written by its pipe (only there with NCCL), and keep what is or was written."""
    pipe = rank_folder / f"nccl-{known.rank}.pipe"
    dump = recorder_folder / f"rank-{known.rank}"
    if pipe.exists() and _can_answer(collection, known):
        before = _written_at(dump)
        if _is_triggered(collection, known.rank, pipe):
            while time.monotonic() < collection.until - 0.1 and _written_at(dump) == before:
                time.sleep(_POLL_S)
    with contextlib.suppress(OSError):
        collection.write(f"flight-recorder-rank-{known.rank}.pickle", dump.read_bytes())


def _is_triggered(collection: _Collection, rank: int, pipe: Path) -> bool:
    """Whether somebody reads the pipe; without a reader nothing would ever be written."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, b"1\n")
        finally:
            os.close(descriptor)
    except OSError as error:
        collection.note(f"the flight recorder's pipe of rank {rank} does not answer: {error.strerror}")
        return False
    return True


def _written_at(dump: Path) -> int:
    try:
        return dump.stat().st_mtime_ns
    except OSError:
        return 0
