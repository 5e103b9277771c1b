# SPDX-License-Identifier: Apache-2.0
"""Tells at once when a watched process ends, and waits for other wake-ups beside that.

The kernel's process descriptors become readable when the process ends, while it is still a zombie whose exit code can
be read. Where they are missing (Linux before 5.3, some sandboxes) the processes are looked at ten times a second.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket

from supervisor.agent import processes
from supervisor.agent.processes import ProcessId

POLL_S = 0.1


class ExitWatch:
    """Used by one thread, except `wake`, which any thread may call."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._descriptors: dict[ProcessId, int] = {}
        self._polled: set[ProcessId] = set()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)

    def add(self, process: ProcessId) -> None:
        """Watch the process; one that is gone already is told by the next `wait`."""
        if process in self._descriptors or process in self._polled:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except (OSError, AttributeError):
            self._polled.add(process)
            return
        if processes.stat_of(process) is None:
            # The id was given to another process before we opened it.
            os.close(descriptor)
            self._polled.add(process)
            return
        self._descriptors[process] = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ, process)

    def remove(self, process: ProcessId) -> None:
        self._polled.discard(process)
        descriptor = self._descriptors.pop(process, None)
        if descriptor is not None:
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def wake(self) -> None:
        """End a `wait` that is under way in another thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_in.send(b"\0")

    def wait(self, timeout_s: float) -> list[ProcessId]:
        """Processes that ended, each told once; returns early when woken."""
        if self._polled:
            timeout_s = min(timeout_s, POLL_S)
        ended: list[ProcessId] = []
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake_out.recv(4096)
            else:
                ended.append(key.data)
        ended += [process for process in self._polled if not processes.is_alive(process)]
        for process in ended:
            self.remove(process)
        return ended

    def close(self) -> None:
        for process in [*self._descriptors, *self._polled]:
            self.remove(process)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
