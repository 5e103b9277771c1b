# SPDX-License-Identifier: Apache-2.0
"""`python -m checkpoint writer`: the process around the writer: lock, socket, log, session and priority.

Its files lie beside the slabs and go with it; a log stays only when there is something in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoint.slab import is_at, memory_folder
from checkpoint.stores import open_store
from checkpoint.wire import base_name, connect, short_path
from checkpoint.writer import Writer

_log = logging.getLogger(__name__)
_LOCK_DEADLINE_S = 10.0
_POLL_S = 0.05
_HOLD_S = 600.0
"""A relaunch that waits for a node or a person comes later than that; it restores from the store."""
_NICENESS = 10
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_LOWEST_BEST_EFFORT = (2 << 13) | 7
"""Class and level as linux/ioprio.h packs them; the idle class could starve a commit for ever."""


def detach() -> bool:
    """Go on in a process of its own session, which no kill of a process group or tree of the ranks reaches.

    False in the process that was called, which is to end.
    """
    if os.fork():
        return False
    os.setsid()
    return True


def serve(location: str, linger_s: float) -> int:
    """Be the writer of a store, unless another one is; returns when nobody needs it any more."""
    folder = memory_folder(os.environ)
    with _lock(folder, location) as is_mine:
        if not is_mine:
            return 0
        _redirect(folder / f"{base_name(location)}.log")
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
        _lower_priority()
        writer = Writer(open_store, folder, linger_s=linger_s, hold_s=_hold_seconds())
        signal.signal(signal.SIGTERM, lambda *_: writer.hurry())
        with _listening(folder, location) as listener:
            writer.listen(listener)
            writer.run()
        _drop_empty(folder / f"{base_name(location)}.log")
    with contextlib.suppress(OSError):
        folder.rmdir()
    return 0


def _hold_seconds() -> float:
    """How long snapshots of dead ranks are held for the next launch, by `CHECKPOINT_HOLD_S`."""
    text = os.environ.get("CHECKPOINT_HOLD_S", "")
    try:
        return float(text or _HOLD_S)
    except ValueError:
        _log.warning("CHECKPOINT_HOLD_S=%r is not a number of seconds, so it is %g", text, _HOLD_S)
        return _HOLD_S


@contextmanager
def _lock(folder: Path, location: str) -> Iterator[bool]:
    """Hold the lock of the writer; False when another writer serves."""
    path = folder / f"{base_name(location)}.lock"
    ends = time.monotonic() + _LOCK_DEADLINE_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                break
        except BlockingIOError:
            if _is_served(folder, location) or time.monotonic() >= ends:
                os.close(descriptor)
                yield False
                return
            time.sleep(_POLL_S)
        os.close(descriptor)
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_served(folder: Path, location: str) -> bool:
    """Whether a writer answers; one that is just ending does not."""
    try:
        connect(folder, location, timeout_s=_LOCK_DEADLINE_S).close()
    except OSError:
        return False
    return True


@contextmanager
def _listening(folder: Path, location: str) -> Iterator[socket.socket]:
    """The writer's socket under its name; one of that name was left by a dead writer, since the lock is ours."""
    name = f"{base_name(location)}.sock"
    (folder / name).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        with short_path(folder, name) as path:
            listener.bind(path)
        listener.listen(1024)
        try:
            yield listener
        finally:
            (folder / name).unlink(missing_ok=True)


def _redirect(log: Path) -> None:
    """Hold on to nothing of the rank that started this: whoever reads its output would wait for us."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    os.close(nothing)


def _drop_empty(log: Path) -> None:
    sys.stderr.flush()
    if log.stat().st_size == 0:
        log.unlink()


def _lower_priority() -> None:
    """Leave processor and disk to training where both want them."""
    os.nice(_NICENESS)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_LOWEST_BEST_EFFORT)
