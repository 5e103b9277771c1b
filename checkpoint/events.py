# SPDX-License-Identifier: Apache-2.0
"""Facts about saves and restores as JSON lines, for a supervisor that follows the file.

Each line is one `write` to a file opened for appending, so that lines of several processes never mix. An event that
cannot be written is logged once and never stops training.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

_log = logging.getLogger(__name__)


class EventLog:
    """Appends to `<prefix>.rank-<rank>.jsonl`; does nothing without a prefix."""

    def __init__(self, prefix: str | None, *, rank: int, attempt: int) -> None:
        self._path = Path(f"{prefix}.rank-{rank}.jsonl") if prefix else None
        self._rank = rank
        self._attempt = attempt
        self._descriptor: int | None = None
        self._has_failed = False

    def write(self, event: str, **fields: object) -> None:
        """Append one event with its time, rank and attempt."""
        if self._path is None:
            return
        line = {"event": event, "at": time.time(), "rank": self._rank, "attempt": self._attempt, **fields}
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        except OSError as error:
            if not self._has_failed:
                _log.warning("checkpoint events cannot be written file=%s why=%s", self._path, error)
            self._has_failed = True

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
