# SPDX-License-Identifier: Apache-2.0
"""A rank's end of the line to the writer: starts one when there is none, hands saves in, hears what became of them.

A thread of its own does all that waits, so that a step never does. A writer that dies takes the saves that it had in
hand with it: they are reported as failed, their slots are free again, and the next writer is started.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from checkpoint.api import Store
from checkpoint.slab import Slab, Word
from checkpoint.wire import Bye, Drain, Hello, Lines, Message, Missed, Outcome, Report, Saved, connect, encode
from checkpoint.writer import Writer

_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT_S = 5.0
_RETRY_S = 0.05
_START_AGAIN_S = 5.0
_LET_FIRST_S = 2.0
"""How long ranks that are not the first of their node leave it to that one to start a writer."""
_GIVE_UP_S = 60.0
_READ_BYTES = 1 << 16
_RANKS_OWN = ("SUPERVISOR_", "TORCHELASTIC_", "RANK", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "CHECKPOINT_EVENTS")


class Line(Protocol):
    """Where a connection to a writer comes from."""

    def connect(self) -> socket.socket:
        """Raises OSError when there is no writer yet."""


class ProcessLine:
    """The writer process of this node; started when nobody answers."""

    def __init__(self, folder: Path, location: str, *, linger_s: float, is_first: bool) -> None:
        self._folder = folder
        self._location = location
        self._linger_s = linger_s
        self._next_start = time.monotonic() + (0.0 if is_first else _LET_FIRST_S)

    def connect(self) -> socket.socket:
        try:
            return connect(self._folder, self._location, timeout_s=_CONNECT_TIMEOUT_S)
        except OSError:
            if time.monotonic() >= self._next_start:
                self._next_start = time.monotonic() + _START_AGAIN_S
                start_writer(self._location, self._linger_s)
            raise


class ThreadLine:
    """A writer in a thread of this process, for a store that only this process has; it does not outlive it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def connect(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        writer = Writer(lambda _location: self._store, None, linger_s=0.0)
        writer.adopt(theirs)
        threading.Thread(target=writer.run, name="checkpoint-writer", daemon=True).start()
        return mine


def start_writer(location: str, linger_s: float) -> None:
    """Start a writer; returns when it has detached itself, which takes a moment.

    Raises:
        OSError: it could not be started.
    """
    command = [sys.executable, "-m", "checkpoint", "writer", location, "--linger", str(linger_s), "--detach"]
    nothing = subprocess.DEVNULL
    ended = subprocess.run(
        command, env=_nobodys(os.environ), stdin=nothing, stdout=nothing, stderr=nothing, check=False
    )
    if ended.returncode:
        raise OSError(f"{' '.join(command)} ended with {ended.returncode}; run it by hand to see why")


def _nobodys(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what makes a process one of a rank's: whoever ends a rank's processes goes by that."""
    return {name: value for name, value in environment.items() if not name.startswith(_RANKS_OWN)}


def drain(folder: Path, location: str, *, deadline_s: float) -> None:
    """Let the writer of an earlier launch on this node finish what its ranks, which are dead, have left it.

    Returns at once when there is none, and in any case by the deadline.
    """
    try:
        with connect(folder, location, timeout_s=_CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(deadline_s)
            connection.sendall(encode(Drain()))
            connection.recv(_READ_BYTES)
    except TimeoutError:
        _log.warning("writer of an earlier launch is still busy, what it commits may not count after_s=%g", deadline_s)
    except OSError:
        return


@dataclass(slots=True)
class _Entrusted:
    """A save that the writer has and of which the end is not known."""

    step: int
    slab: Slab
    is_durable: bool
    is_persisted: bool = False


class WriterLink:
    """Sends saves and keeps account of them.

    `tell_lost` is called for a save that died with its writer, `when_committed` for one that did not, with its seconds
    of stall and of writing.
    """

    def __init__(
        self,
        hello: Hello,
        line: Line,
        *,
        tell_lost: Callable[[int, str], None],
        when_committed: Callable[[float, float], None],
    ) -> None:
        self._when_committed = when_committed
        self._hello = hello
        self._line = line
        self._tell_lost = tell_lost
        self._changed = threading.Condition()
        self._entrusted: dict[int, _Entrusted] = {}
        self._unheard: dict[int, Missed] = {}
        self._outbox: deque[Message] = deque()
        self._last: Report | None = None
        self._is_closing = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="checkpoint-link", daemon=True)
        self._thread.start()

    def hand_in(self, message: Saved, slab: Slab) -> None:
        """Give a full slab to the writer; never waits."""
        with self._changed:
            self._entrusted[message.serial] = _Entrusted(message.step, slab, message.durable)
            self._outbox.append(message)
        self._wake()

    def miss(self, message: Missed) -> None:
        """Let the others know that this rank has no part in a save, whichever writer hears it; never waits."""
        with self._changed:
            self._unheard[message.serial] = message
            self._outbox.append(message)
        self._wake()

    def wait(self, is_enough: Callable[[], bool], deadline_s: float | None = None) -> bool:
        """Wait until something that the writer brings about is so; whether it is."""
        ends = None if deadline_s is None else time.monotonic() + deadline_s
        with self._changed:
            while not is_enough():
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    return False
                # A slot that is freed before its report has come wakes nobody.
                self._changed.wait(_RETRY_S if left is None else min(left, _RETRY_S))
        return True

    def has_settled_all(self) -> bool:
        """Whether nothing more is to come: here a save ends with rank 0's commit, and with other ranks' own part."""
        return not self._entrusted and not self._unheard

    def has_failed(self, serial: int) -> bool:
        """Whether the last save, of this number, is known to have failed."""
        last = self._last
        return last is not None and last.serial == serial and last.outcome in (Outcome.FAILED, Outcome.REFUSED)

    def close(self, *, leave: Bye | None) -> None:
        """End the line; without a Bye the writer takes the rank for dead and finishes what it has."""
        if leave is not None:
            self._outbox.append(leave)
        self._is_closing = True
        self._wake()
        self._thread.join()
        self._wake_in.close()
        self._wake_out.close()

    def _wake(self) -> None:
        self._wake_in.send(b"x")

    def _run(self) -> None:
        while not self._is_closing:
            connection = self._connect()
            if connection is not None:
                with connection:
                    why = self._talk(connection)
                if not self._is_closing:
                    self._lose(f"the checkpoint writer ended: {why}")

    def _connect(self) -> socket.socket | None:
        """A connection with this rank's Hello said; None when closing."""
        began = time.monotonic()
        while not self._is_closing:
            try:
                connection = self._line.connect()
                connection.sendall(encode(self._hello))
                connection.settimeout(_CONNECT_TIMEOUT_S)
            except OSError as error:
                if time.monotonic() - began >= _GIVE_UP_S:
                    began = time.monotonic()
                    self._lose(f"no checkpoint writer could be reached or started: {error}")
                    self._unheard.clear()
                time.sleep(_RETRY_S)
            else:
                return connection
        return None

    def _talk(self, connection: socket.socket) -> str:
        """Pass messages on in both directions until the line ends; returns why it did."""
        lines = Lines()
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(self._wake_out, selectors.EVENT_READ)
            while True:
                try:
                    while self._outbox:
                        connection.sendall(encode(self._outbox[0]))
                        self._outbox.popleft()
                    if self._is_closing:
                        self._end(connection)
                        return ""
                    for key, _ in selector.select():
                        if key.fileobj is self._wake_out:
                            self._wake_out.recv(_READ_BYTES)
                        elif not self._hear(connection, lines):
                            return "it closed the connection"
                except (OSError, ValueError) as error:
                    return str(error)

    def _end(self, connection: socket.socket) -> None:
        """Close our half and wait for the writer to have read all of it, unless it is a process that lives on."""
        connection.shutdown(socket.SHUT_WR)
        if isinstance(self._line, ThreadLine):
            connection.settimeout(None)
            while connection.recv(_READ_BYTES):
                pass

    def _hear(self, connection: socket.socket, lines: Lines) -> bool:
        payload = connection.recv(_READ_BYTES)
        for message in lines.feed(payload):
            if isinstance(message, Report):
                self._note(message)
        return bool(payload)

    def _note(self, report: Report) -> None:
        if report.outcome is Outcome.COMMITTED:
            self._when_committed(report.stall_s, report.write_s)
        with self._changed:
            if report.outcome is Outcome.NOTED:
                self._unheard.pop(report.serial, None)
                self._changed.notify_all()
                return
            self._last = report
            entrusted = self._entrusted.get(report.serial)
            if report.outcome is Outcome.PERSISTED and self._hello.rank == 0 and entrusted is not None:
                entrusted.is_persisted = True
            else:
                self._entrusted.pop(report.serial, None)
            self._changed.notify_all()
        if report.outcome is Outcome.COMMITTED:
            _log.info("checkpoint committed step=%d %s", report.step, report.message)
        elif report.outcome is Outcome.REFUSED:
            _log.error("checkpoint commit refused step=%d why=%s", report.step, report.message)
        elif report.outcome is Outcome.FAILED:
            _log.error("checkpoint save failed, the previous one stands step=%d why=%s", report.step, report.message)

    def _lose(self, why: str) -> None:
        """What was in the writer's hands is lost; free its slots, and have the next writer tell the other ranks.

        A miss that the writer had not noted may never have reached the others, who would wait for this rank's part.
        """
        with self._changed:
            lost = dict(self._entrusted)
            self._outbox.clear()
            self._outbox.extend(self._unheard.values())
            for serial, entrusted in lost.items():
                if not entrusted.is_persisted:
                    entrusted.slab.word = Word.FREE
                if entrusted.is_durable:
                    missed = self._unheard[serial] = Missed(serial, entrusted.step, why)
                    self._outbox.append(missed)
                    self._last = Report(serial, entrusted.step, Outcome.FAILED, why)
            self._entrusted.clear()
            self._changed.notify_all()
        for entrusted in (each for each in lost.values() if each.is_durable):
            _log.error("checkpoint save failed, the previous one stands step=%d why=%s", entrusted.step, why)
            self._tell_lost(entrusted.step, why)
