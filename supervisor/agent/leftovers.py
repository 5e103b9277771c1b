# SPDX-License-Identifier: Apache-2.0
"""What an ended attempt has left running: asked to end at once, killed when its time is up or before the next start."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

from supervisor.agent import folders, processes
from supervisor.agent.attempt import Attempt

_log = logging.getLogger(__name__)


class Leftovers:
    """Begins to end them; `until` is when the rest is to be killed."""

    def __init__(self, attempt: Attempt, until: float) -> None:
        self.until = until
        self._attempt = attempt
        for process in attempt.leftovers():
            processes.send(process, signal.SIGTERM)

    def kill(self) -> None:
        """Also gives the rank folder's memory back."""
        for process in self._attempt.leftovers():
            _log.warning("killing process %d, left behind by attempt %d", process.pid, self._attempt.record.attempt)
            processes.send(process, signal.SIGKILL)
        folders.remove_rank_folder(Path(self._attempt.record.rank_folder))
