# SPDX-License-Identifier: Apache-2.0
"""How ranks ended, read while they are zombies: their parent is the launcher, and it may wait for them first."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from supervisor.agent import processes
from supervisor.agent.processes import ProcessId


class ExitCodes:
    """Of the ranks of one attempt."""

    def __init__(self) -> None:
        self._codes: dict[ProcessId, int] = {}

    def keep(self, ranks: Iterable[ProcessId]) -> None:
        """Read the code of each that has ended."""
        for process in ranks:
            if process not in self._codes and (code := processes.exit_code(process)) is not None:
                self._codes[process] = code

    def take(self, process: ProcessId, *, was_forced: bool) -> int | None:
        """Of a rank that is gone, None when nobody can tell; `was_forced` when it lived as we sent it SIGKILL."""
        code = self._codes.pop(process, None)
        if code is None:
            code = processes.reap(process.pid)
        return -signal.SIGKILL if code is None and was_forced else code
