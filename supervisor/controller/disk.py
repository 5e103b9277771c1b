# SPDX-License-Identifier: Apache-2.0
"""Whether the disk under the run folder is full, and whether it was when an attempt failed.

A rank that prints on a full disk dies of it, and its last words are lost with it: what is remembered here is then the
only trace of the cause, since there is room again by the time the diagnosis can be written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
FULL_BELOW_BYTES = 32 * 2**10
"""Less than the buffers of a few files hold."""
ROOM_ABOVE_BYTES = 128 * 2**10
"""A disk that was full is so until it has this much, so that it is not told at every line that comes and goes."""
BEFORE_S = 30.0
"""A disk that was full so long before a failure may be its cause; hosts' clocks may differ by as much."""


def free_bytes(folder: Path) -> int | None:
    """What we may still write there; None where the file system does not tell."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    if not found.f_blocks:
        return None
    if found.f_files and not found.f_favail:
        return 0
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


class Disk:
    """Used by the shell's loop; `was_full` may be asked by any thread."""

    def __init__(self, folder: Path, free: Callable[[Path], int | None] = free_bytes) -> None:
        self.folder = folder
        self.is_full = False
        self._free = free
        self._full_at: float | None = None

    def look(self, at: float) -> bool:
        """Whether it is full at this moment, which is remembered."""
        free = self._free(self.folder)
        self.is_full = free is not None and free < (ROOM_ABOVE_BYTES if self.is_full else FULL_BELOW_BYTES)
        if self.is_full:
            self._full_at = at
        return self.is_full

    def note_refused_write(self, at: float) -> None:
        """A write of our own found no room, whatever the file system tells of its free space (a quota)."""
        self._full_at = at

    def was_full(self, since: float) -> bool:
        """Whether it was full at that time, shortly before, or at any time after."""
        return self._full_at is not None and self._full_at >= since - BEFORE_S
