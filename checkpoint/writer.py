# SPDX-License-Identifier: Apache-2.0
"""The writer: writes the snapshots of a node's ranks to the store, in a process that outlives them.

It is started on demand, runs in a session of its own at low priority, and ends by itself when its ranks are gone and
nothing is left to write. A lock file has one of them run for each node, user and store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from checkpoint.api import CheckpointError, Store
from checkpoint.held import plain_image
from checkpoint.node_memory import NodeMemory
from checkpoint.session import Session
from checkpoint.slab import sweep
from checkpoint.wire import (
    Bye,
    Drain,
    Drained,
    Hello,
    Holdings,
    Inventory,
    Lines,
    Message,
    Missed,
    Release,
    Saved,
    TakeReplicas,
    encode,
)

_log = logging.getLogger(__name__)
_CLEAN_LINGER_S = 1.0
"""How long to wait for further ranks when those that were there have left by their own will."""
_FIRST_PEER_S = 10.0
"""How long to wait for the rank that had this process started."""
_SUPERSEDING_SAVES = 2
"""Durable saves of a launch that make useless what is held of launches before it."""
_TURN_S = 0.5
_READ_BYTES = 1 << 16


class Peer:
    """One connection: a rank after its Hello, else somebody who asks."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = Lines()
        self.session: Session | None = None
        self.process: int | None = None
        """A descriptor that can be read when the rank's process has ended."""
        self.has_said_bye = False
        self.wants_drained = False


class Writer:
    """Serves connections until nobody needs it. One thread runs it; each rank's work has a thread of its own."""

    def __init__(
        self,
        open_store: Callable[[str], Store],
        folder: Path | None,
        *,
        linger_s: float = _CLEAN_LINGER_S,
        hold_s: float = 0.0,
    ) -> None:
        self._open_store = open_store
        self._folder = folder
        self._linger_s = linger_s
        self._hold_s = hold_s
        self._memory = NodeMemory(folder, self._is_live)
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)
        self._peers: list[Peer] = []
        self._sessions: dict[tuple[str, int], Session] = {}
        self._busy_at = time.monotonic()
        self._is_hurried = False
        self._has_seen_death = False
        self._has_served = False
        self._may_commit = threading.Event()

    def listen(self, listener: socket.socket) -> None:
        """Take connections from a listening socket."""
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def adopt(self, connection: socket.socket) -> None:
        """Serve one connection."""
        peer = Peer(connection)
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def hurry(self) -> None:
        """End as soon as nothing is left to write. May be called by a signal's handler."""
        self._is_hurried = True
        self._wake()

    def run(self) -> None:
        """Serve until nobody is connected, nothing is left to write, and nobody has come for a while."""
        while not self._is_over():
            for key, _ in self._selector.select(_TURN_S):
                if isinstance(key.data, Peer):
                    self._serve(key.data, has_ended=key.fd == key.data.process)
                elif key.data is not None:
                    self.adopt(key.data.accept()[0])
                else:
                    self._wake_out.recv(_READ_BYTES)
            self._reap()
        self._memory.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _is_over(self) -> bool:
        if self._peers or self._sessions:
            self._busy_at, self._has_served = time.monotonic(), True
            return self._is_hurried and not self._sessions
        linger_s = self._linger_s if self._has_seen_death else min(_CLEAN_LINGER_S, self._linger_s)
        linger_s = linger_s if self._has_served else _FIRST_PEER_S
        linger_s = max(linger_s, self._hold_s) if self._memory.shelf.images() else linger_s
        return self._is_hurried or time.monotonic() - self._busy_at >= linger_s

    def _serve(self, peer: Peer, *, has_ended: bool) -> None:
        if peer not in self._peers:
            return
        # Children that the rank forked hold its end open for a while after its death, so what it sent is read first.
        while select.select([peer.connection], [], [], 0)[0]:
            if not self._read(peer):
                return
        if has_ended:
            self._part(peer)

    def _read(self, peer: Peer) -> bool:
        """Take what a peer has sent; False when it has gone."""
        try:
            payload = peer.connection.recv(_READ_BYTES)
            messages = peer.lines.feed(payload)
        except ConnectionResetError:  # a rank that was killed before it had read our last report
            payload, messages = b"", []
        except (OSError, ValueError) as error:
            _log.warning("connection dropped why=%s", error)
            payload, messages = b"", []
        for message in messages:
            if isinstance(message, Hello):
                self._welcome(peer, message)
            elif isinstance(message, (Saved, Missed)) and peer.session is not None:
                peer.session.take(message)
            elif isinstance(message, Bye):
                peer.has_said_bye = True
                if message.abandon and peer.session is not None:
                    peer.session.orphan(after_s=0.0)
            elif self._hear(peer, message):
                payload = b""
        if not payload:
            self._part(peer)
        return bool(payload)

    def _hear(self, peer: Peer, message: Message) -> bool:
        """Serve somebody who asks; whether that was all of it."""
        match message:
            case Drain():
                peer.wants_drained = True
            case Inventory():
                living = [image for each in self._sessions.values() for image in each.holding.images()]
                _answer(peer, Holdings([plain_image(each) for each in (*self._memory.shelf.images(), *living)]))
            case TakeReplicas():
                _answer(peer, self._memory.take_replicas(message))
            case Release():
                self._memory.shelf.release(message.snapshots)
                return True
            case _:
                _log.warning("message is of no use here message=%s", message)
        return False

    def _welcome(self, peer: Peer, hello: Hello) -> None:
        try:
            store = self._open_store(hello.location)
        except CheckpointError as error:
            # Other ranks' saves are not to end with it; this one is told by the end of its line.
            _log.error("store cannot be opened here why=%s", error)
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
            return
        peer.session = self._sessions[hello.launch, hello.rank] = Session(
            hello,
            store,
            peer.connection,
            may_commit=self._may_commit,
            hopeless=self._hopeless,
            when_over=self._wake,
            offer=self._memory.offering(hello.launch, hello.peer),
        )
        with contextlib.suppress(OSError):
            peer.process = os.pidfd_open(hello.pid)
            self._selector.register(peer.process, selectors.EVENT_READ, peer)
        if hello.rank == 0:
            # Committing needs torch, whose import takes a second: better now than when the first save waits for it.
            threading.Thread(target=self._import_publisher, name="checkpoint-import", daemon=True).start()

    def _part(self, peer: Peer) -> None:
        self._selector.unregister(peer.connection)
        if peer.process is not None:
            self._selector.unregister(peer.process)
            os.close(peer.process)
        self._peers.remove(peer)
        session = peer.session
        if session is None:
            peer.connection.close()
            return
        session.leave(has_died=not peer.has_said_bye)
        self._has_seen_death = not peer.has_said_bye
        launch = session.hello.launch
        living = [each for each in self._peers if each.session and each.session.hello.launch == launch]
        if not living:
            for each in self._sessions.values():
                if each.hello.launch == launch:
                    each.orphan()

    def _is_live(self, launch: str) -> bool:
        return any(each == launch for each, _ in list(self._sessions))

    def _hopeless(self, own: Hello, rank: int, serial: int) -> str:
        session = self._sessions.get((own.launch, rank))
        if session is None or not session.has_died:
            return ""
        if session.newest < serial:
            return f"rank {rank} ended before it handed in its part"
        if session.is_over and serial not in session.persisted:
            return f"rank {rank} ended without a part of it"
        return ""

    def _reap(self) -> None:
        """Forget launches that are done, but for what is held of them, and answer who waited for that."""
        for each in self._sessions.values():
            if len(each.persisted) >= _SUPERSEDING_SAVES:
                self._memory.shelf.keep_only(self._is_live)
        for launch in {launch for launch, _ in self._sessions}:
            of_launch = {key: each for key, each in self._sessions.items() if key[0] == launch}
            listened_to = {id(peer.session) for peer in self._peers}
            if all(each.is_over and id(each) not in listened_to for each in of_launch.values()):
                for key in of_launch:
                    session = self._sessions.pop(key)
                    session.close()
                    if self._hold_s > 0:
                        self._memory.shelf.put(launch, session.hello.rank, session.holding)
                    else:
                        session.holding.close(remove=True)
                self._memory.end(launch, has_died=any(each.has_died for each in of_launch.values()))
                self._clear_up_after(of_launch.get((launch, 0)))
                if self._folder is not None:
                    sweep(self._folder)
        living = {id(peer.session) for peer in self._peers}
        if all(id(session) in living for session in self._sessions.values()):
            for peer in [each for each in self._peers if each.wants_drained]:
                _answer(peer, Drained())
                self._part(peer)

    def _clear_up_after(self, first: Session | None) -> None:
        """When a rank 0 is gone, remove what other ranks have written of saves that it never handed in, or skipped."""
        # In a thread, a rank that has left by its own will may be saving through another writer by now.
        if first is None or not (first.has_died or self._folder is not None):
            return
        if all(each.hello.attempt != first.hello.attempt for each in self._sessions.values()):
            first.clear_rest()

    def _import_publisher(self) -> None:
        import checkpoint.publisher  # noqa: F401

        self._may_commit.set()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.send(b"x")


def _answer(peer: Peer, message: Message) -> None:
    """Tell somebody who asked, if still there."""
    with contextlib.suppress(OSError):
        peer.connection.sendall(encode(message))
