# SPDX-License-Identifier: Apache-2.0
"""An attempt whose record is damaged: it cannot be adopted, so it is only ended, and nothing starts beside it.

Whether something of it lives is told without the record: launchers and ranks carry the rank folder in their
environment, wrappers and whatever was started warm have a file of the agent's own folder on their command line. Only
when none of them is left is the record set aside. Which attempt it was is told by what else it left, and rather too
high than too low: an attempt that is taken for ended is relaunched under the next number, never started twice.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from supervisor.agent import folders, processes
from supervisor.agent.api import AttemptEnded, FinishAttempt, LaunchRefused, LaunchSpec, StartAttempt, StopAttempt
from supervisor.agent.folders import AgentFolders
from supervisor.agent.processes import ProcessId
from supervisor.agent.record import AttemptRecord, RecordError

LOOK_S = 1.0
_PIDS_TOLD = 5
_ATTEMPT = re.compile(rb'"attempt": ?(\d{1,9})\b')
_NUMBERED = re.compile(r"(?:attempt-)?0*(\d{1,9})$")


class UnreadableAttempt:
    """Used by the agent's loop alone; `why` says what is wrong with the record."""

    def __init__(self, where: AgentFolders, environment: Mapping[str, str], why: str) -> None:
        self.why = why
        self._folders = where
        self._rank_folders = folders.node_folder(folders.shared_root(environment), where)
        self._looked_at = float("-inf")
        self._living: list[ProcessId] = []
        self._kill_at: float | None = None

    def look(self, now: float) -> list[ProcessId]:
        """What is still there of it; once the grace of a `stop` is over, that is killed."""
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self._living = living(self._folders, self._rank_folders)
            if self._kill_at is not None and now >= self._kill_at:
                self._send(signal.SIGKILL)
        return self._living

    def is_meant_by(self, order: StopAttempt | FinishAttempt) -> bool:
        """A stop of an older attempt, which came late, ends nothing; the rank folder's name tells which one lives."""
        return order.attempt >= max(_numbered(self._rank_folders), default=0)

    def stop(self, grace_s: float) -> None:
        """End what is left; a second stop may only make the grace shorter."""
        kill_at = time.monotonic() + grace_s
        if self._kill_at is None:
            self._send(signal.SIGTERM)
            self._kill_at = kill_at
        self._kill_at = min(self._kill_at, kill_at)

    def _send(self, number: signal.Signals) -> None:
        for process in self._living:
            processes.send(process, number)

    @property
    def trouble(self) -> str:
        """For a person: what is wrong, what is not done because of it, and the next step."""
        pids = ", ".join(str(each.pid) for each in self._living[:_PIDS_TOLD])
        more = ", ..." if len(self._living) > _PIDS_TOLD else ""
        return (
            f"{self.why}, and processes of its attempt still run on this node ({pids}{more}): they cannot be watched, "
            "and nothing is started beside them; end them (kill, or `supervisor stop`), then the file is set aside and "
            "the run goes on by itself"
        )

    def refusal(self, order: StartAttempt) -> LaunchRefused:
        return LaunchRefused(order.attempt, time.time(), self.trouble, permanent=False)

    def set_aside(self) -> tuple[Path, AttemptRecord | None]:
        """Where the damaged record lies now, and one in its place for the attempt that has ended.

        Call it when nothing is left. Raises RecordError when the file cannot be moved.
        """
        path = self._folders.record
        aside = path.with_name(f"{path.name}.damaged")
        attempt = max(self._numbers(), default=0)
        try:
            path.replace(aside)
        except OSError as error:
            raise RecordError(f"{self.why}; it cannot be moved to {aside} ({error.strerror}): remove both") from error
        if attempt == 0:
            return aside, None
        at = time.time()
        ended = AttemptEnded(attempt, at, None, (), by_us=self._kill_at is not None)
        return aside, AttemptRecord(attempt, LaunchSpec((), "", (), ""), "", "", at, ended=ended)

    def _numbers(self) -> Iterator[int]:
        """Attempts that may have been the one; what the damaged file says counts only if the run has come so far."""
        yield from _numbered(self._rank_folders)
        yield from _numbered(self._folders.exits)
        newest = max(_numbered(self._folders.run_folder / "attempts"), default=0)
        said = _said(self._folders.record)
        yield said if 0 < said <= newest else newest


def living(where: AgentFolders, rank_folders: Path) -> list[ProcessId]:
    """Every process of an attempt of this run on this node, and what these have started."""
    found: dict[int, ProcessId] = {}
    for each in processes.all_stats():
        if each.is_gone or each.pid == os.getpid() or not _is_of(each.pid, where, rank_folders):
            continue
        found[each.pid] = each.identity
        for pid in processes.descendants(each.pid):
            below = processes.identity_of(pid)
            if below is not None and processes.is_alive(below):
                found[pid] = below
    return [found[pid] for pid in sorted(found)]


def _is_of(pid: int, where: AgentFolders, rank_folders: Path) -> bool:
    carried = processes.environment_of(pid).get("SUPERVISOR_RANK_FOLDER")
    if carried is not None and Path(carried).parent == rank_folders:
        return True
    ours = (f"{where.exits}/", str(where.own / "standby.py"))
    return any(word.startswith(ours) for word in processes.command_line(pid))


def _numbered(folder: Path) -> Iterator[int]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return
    for name in names:
        match = _NUMBERED.match(name)
        if match is not None:
            yield int(match[1])


def _said(path: Path) -> int:
    try:
        match = _ATTEMPT.search(path.read_bytes())
    except OSError:
        return 0
    return 0 if match is None else int(match[1])
