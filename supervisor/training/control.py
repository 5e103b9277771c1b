# SPDX-License-Identifier: Apache-2.0
"""The page by which the node's agent tells its ranks what to do; a rank reads it at each step without a system call.

Ranks of a synchronous run must stop after the same step. They do not ask each other: the agents name a step slightly in
the future, and each rank stops when it has done that step.
"""

from __future__ import annotations

import struct
from pathlib import Path

from supervisor.training import pages

_MAGIC = b"SUPCTRL\0"
_VERSION = 1
_IDENTITY = struct.Struct("<8sQ")
_SIZE = 4096

_GENERATION, _STOP, _HEALTH = range(2, 5)  # by index into the page's words
_NEVER = (1 << 64) - 1
_HEALTH_WORDS: dict[bool | None, int] = {None: 0, True: 1, False: 2}


class ControlError(Exception):
    """The file is not a control page that this version can use."""


class ControlView:
    """The rank's view of the control page."""

    def __init__(self, path: Path) -> None:
        """Map the page.

        Raises:
            OSError: the file cannot be opened.
            ControlError: it is not a control page of this version.
        """
        self._page = _opened(path, is_writable=False)
        self._words = self._page.words

    @property
    def stop_at_step(self) -> int | None:
        """Last step to do, or None to go on."""
        step: int = self._words[_STOP]
        return None if step == _NEVER else step

    def is_stop_due(self, step: int) -> bool:
        """Tell whether a rank that has done `step` is to stop."""
        stop_at: int = self._words[_STOP]
        return step >= stop_at

    @property
    def loss_healthy(self) -> bool | None:
        """What the controller last judged; None when it has not yet."""
        word = self._words[_HEALTH]
        return None if word == _HEALTH_WORDS[None] else bool(word == _HEALTH_WORDS[True])

    @property
    def generation(self) -> int:
        """Number of changes so far."""
        count: int = self._words[_GENERATION]
        return count

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()


class ControlPage(ControlView):
    """The agent's end of the control page, the only writer."""

    def __init__(self, path: Path) -> None:
        """Take over an existing page, as an agent does that was restarted.

        Raises:
            OSError: the file cannot be opened.
            ControlError: it is not a control page of this version.
        """
        self._page = _opened(path, is_writable=True)
        self._words = self._page.words

    @classmethod
    def create(cls, path: Path) -> ControlPage:
        """Put a new page at `path`, before the ranks are started.

        Raises:
            OSError: the folder cannot be written, or the disk is full.
        """
        head = _IDENTITY.pack(_MAGIC, _VERSION) + struct.pack("<QQQ", 0, _NEVER, _HEALTH_WORDS[None])
        pages.create(path, _SIZE, head).close()
        return cls(path)

    def request_stop(self, step: int) -> None:
        """Have every rank stop once it has done `step`; 0 stops each after the step it is in.

        Raises:
            ValueError: the step is negative.
        """
        if step < 0:
            raise ValueError(f"the step to stop at cannot be {step}")
        self._words[_STOP] = step
        self._words[_GENERATION] += 1

    def set_loss_health(self, is_healthy: bool | None) -> None:
        """Tell the ranks how the controller judges the loss; they note it in their checkpoints."""
        self._words[_HEALTH] = _HEALTH_WORDS[is_healthy]
        self._words[_GENERATION] += 1


def _opened(path: Path, *, is_writable: bool) -> pages.Page:
    try:
        page = pages.Page(path, is_writable=is_writable)
    except ValueError as error:
        raise ControlError(f"{path} is empty, not a control page") from error
    if len(page.bytes) != _SIZE or _IDENTITY.unpack_from(page.bytes) != (_MAGIC, _VERSION):
        page.close()
        raise ControlError(f"{path} is no control page of version {_VERSION}; agent and training must run one version")
    return page
