# SPDX-License-Identifier: Apache-2.0
"""Finds the ranks of an attempt on this node.

A rank makes itself known by its ring, or by the environment that every launcher of torch's kind gives it (RANK and
LOCAL_RANK). The processes that it starts itself inherit both, so below a rank nothing is looked at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from supervisor.agent import processes
from supervisor.agent.processes import ProcessId
from supervisor.agent.record import KnownRank
from supervisor.training.ring import RingError, RingReader

FORKED = "forked-*.json"
"""Left by a rank that was forked from a warm interpreter: its environment in /proc is that of the interpreter."""
_CLOCKS_APART_S = 1.0


def walk(
    launcher: ProcessId,
    *,
    is_torchrun: bool,
    children: Callable[[int], list[int]] = processes.children,
    environment: Callable[[int], Mapping[str, str]] = processes.environment_of,
) -> Iterator[tuple[int, int, int, int]]:
    """(rank, local rank, pid, ranks on this node or 0) of the topmost processes below the launcher that are ranks.

    The launcher of a command without torchrun may be a rank itself.
    """
    waiting = children(launcher.pid) if is_torchrun else [launcher.pid]
    while waiting:
        pid = waiting.pop()
        variables = environment(pid)
        rank, local_rank = variables.get("RANK", ""), variables.get("LOCAL_RANK", "")
        if rank.isdecimal() and local_rank.isdecimal():
            size = variables.get("LOCAL_WORLD_SIZE", "")
            yield int(rank), int(local_rank), pid, int(size) if size.isdecimal() else 0
        else:
            waiting += children(pid)


class RankFinder:
    """Remembers what it found, so that looking again costs little."""

    def __init__(self, rank_folder: Path, attempt: int) -> None:
        self._folder = rank_folder
        self._attempt = attempt
        self._rings: dict[Path, RingReader] = {}
        self._unreadable: set[Path] = set()
        self.notes: list[str] = []
        """Lines for a person about rings that could not be read; the caller takes them away."""
        self.expected = 0
        """Ranks that this node should have, 0 while unknown."""

    def rings(self) -> dict[int, RingReader]:
        """The newest ring of each rank that has one."""
        for path in self._folder.glob("rank-*.ring"):
            known = self._rings.get(path)
            if known is not None and known.is_current():
                continue
            try:
                self._rings[path] = RingReader(path)
            except OSError:
                continue
            except RingError as error:
                if path not in self._unreadable:
                    self._unreadable.add(path)
                    self.notes.append(str(error))
                continue
            if known is not None:
                known.close()
        return {ring.identity.rank: ring for ring in self._rings.values() if ring.identity.attempt == self._attempt}

    def find(self, launcher: ProcessId | None, *, is_torchrun: bool) -> list[KnownRank]:
        """Ranks that run now or have just ended; each process once."""
        found: dict[int, KnownRank] = {}
        for ring in self.rings().values():
            self._keep(found, ring.identity.rank, ring.identity.local_rank, ring.identity.pid, _age_s(ring))
        for rank, local_rank, pid in self._announced():
            self._keep(found, rank, local_rank, pid)
        if launcher is not None:
            for rank, local_rank, pid, size in walk(launcher, is_torchrun=is_torchrun):
                self.expected = max(self.expected, size)
                self._keep(found, rank, local_rank, pid)
        return list(found.values())

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def _announced(self) -> Iterator[tuple[int, int, int]]:
        for path in self._folder.glob(FORKED):
            try:
                left = json.loads(path.read_text())
                self.expected = max(self.expected, int(left["local_world_size"]))
                yield int(left["rank"]), int(left["local_rank"]), int(left["pid"])
            except (OSError, ValueError, KeyError):
                continue

    @staticmethod
    def _keep(found: dict[int, KnownRank], rank: int, local_rank: int, pid: int, at_least_s: float = 0.0) -> None:
        """Enter the process, unless it is too young to have announced itself so long ago: the id is another's now."""
        process = processes.identity_of(pid)
        if process is not None and processes.age_s(process) >= at_least_s - _CLOCKS_APART_S:
            found[pid] = KnownRank(rank, local_rank, process)


def _age_s(ring: RingReader) -> float:
    return (time.monotonic_ns() - ring.identity.started_monotonic_ns) / 1e9
