# SPDX-License-Identifier: Apache-2.0
"""Reads processes from /proc and signals them.

A process id alone names nothing: the kernel gives it out again. Every process that is kept in mind is therefore named
by its id and its start time, and is checked against both before it is signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


@dataclass(frozen=True, slots=True)
class ProcessId:
    """`started` is in clock ticks since boot, field 22 of /proc/PID/stat."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What /proc/PID/stat tells; `wait_status` is its field 52, filled in once the process has ended."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    started: int
    wait_status: int

    @property
    def identity(self) -> ProcessId:
        return ProcessId(self.pid, self.started)

    @property
    def is_gone(self) -> bool:
        """Whether it runs no more; its parent may not have waited for it yet."""
        return self.state in "ZXx"


def parse_stat(text: str) -> ProcessStat:
    """The content of /proc/PID/stat; the name in it may hold spaces and brackets. Raises ValueError for other text."""
    before, separator, after = text.rpartition(")")
    pid, opened, name = before.partition(" (")
    fields = after.split()
    if not separator or not opened or len(fields) < 20:
        raise ValueError(f"not the content of a /proc/PID/stat: {text[:80]!r}")
    return ProcessStat(
        pid=int(pid),
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
        wait_status=int(fields[49]) if len(fields) > 49 else 0,
    )


def stat(pid: int) -> ProcessStat | None:
    """The process of that id, None when there is none."""
    try:
        # Not by a Path: this is called for every process of the host while an attempt is being ended.
        with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123
            return parse_stat(file.read())
    except (OSError, ValueError):
        return None


def stat_of(process: ProcessId) -> ProcessStat | None:
    """The process, None when it is gone and its id perhaps another's."""
    found = stat(process.pid)
    return found if found is not None and found.started == process.started else None


def is_alive(process: ProcessId) -> bool:
    found = stat_of(process)
    return found is not None and not found.is_gone


def identity_of(pid: int) -> ProcessId | None:
    found = stat(pid)
    return None if found is None else found.identity


def exit_code(process: ProcessId) -> int | None:
    """Of a process that has ended and was not waited for yet, negative for a signal; None when nobody can tell."""
    found = stat_of(process)
    if found is None or not found.is_gone:
        return None
    return os.waitstatus_to_exitcode(found.wait_status)


def environment_of(pid: int) -> dict[str, str]:
    """With which the process was started; what it changed in itself since then does not show. Empty if unreadable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            raw = file.read()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def command_line(pid: int) -> list[str]:
    """The words of the command; empty if unreadable or gone."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in raw.split(b"\0") if word]


def all_stats() -> list[ProcessStat]:
    """Every process of this host that we may see."""
    pids = (int(name) for name in _names(PROC) if name.isdecimal())
    return [found for found in map(stat, pids) if found is not None]


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def children(pid: int) -> list[int]:
    """Ids of the children; by the kernel's own list where it is compiled in, else by a look at every process."""
    listed: list[int] = []
    try:
        threads = _names(PROC / str(pid) / "task")
        for thread in threads:
            listed += map(int, (PROC / str(pid) / "task" / thread / "children").read_text().split())
    except OSError:
        return [found.pid for found in all_stats() if found.parent == pid]
    return listed


def descendants(pid: int) -> list[int]:
    """Ids of children, their children and so on, parents first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children(waiting.pop())
        found += below
        waiting += below
    return found


def carrying(variable: str, value: str, everything: Sequence[ProcessStat] | None = None) -> list[ProcessId]:
    """Living processes that were started with `variable=value` in their environment."""
    return [
        found.identity
        for found in (all_stats() if everything is None else everything)
        if not found.is_gone and found.pid != os.getpid() and environment_of(found.pid).get(variable) == value
    ]


def in_sessions_of(leaders: Iterable[ProcessId], everything: Sequence[ProcessStat] | None = None) -> list[ProcessId]:
    """Living processes of the sessions that these processes lead or led.

    While anything of a session lives, the kernel gives its number to nobody else; so a number that another process
    leads now is not the session that was meant.
    """
    everything = all_stats() if everything is None else everything
    now = {found.pid: found.started for found in everything}
    sessions = {leader.pid for leader in leaders if now.get(leader.pid, leader.started) == leader.started}
    return [found.identity for found in everything if found.session in sessions and not found.is_gone]


def send(process: ProcessId, number: signal.Signals, *, to_group: bool = False) -> bool:
    """Signal the process, with `to_group` its whole group where it leads one; False when it is gone already."""
    found = stat_of(process)
    if found is None or found.is_gone:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if to_group and found.group == process.pid:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)
    return True


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent dies, so that they can be waited for; False if refused."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap_orphans() -> None:
    """Wait for ended children that we did not start: what we start for ourselves stays in our own process group."""
    own = os.getpgrp()
    for pid in children(os.getpid()):
        found = stat(pid)
        if found is not None and found.is_gone and found.group != own:
            reap(pid)


def age_s(process: ProcessId) -> float:
    """Since its start, by the clock that counts from boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / os.sysconf("SC_CLK_TCK")


def reap(pid: int) -> int | None:
    """Wait for an ended child without blocking; its exit code, None when it still runs or is not our child."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if ended else None


def wait_channel(pid: int) -> str:
    """The kernel function in which the process sleeps, empty when unknown."""
    try:
        return (PROC / str(pid) / "wchan").read_text()
    except OSError:
        return ""
