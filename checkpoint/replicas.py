# SPDX-License-Identifier: Apache-2.0
"""The peer-memory tier: a writer sends each whole snapshot of its ranks to the writer of the next node in a ring.

What the network cannot keep up with is left out: of each rank only the newest snapshot waits. The receiver verifies
the checksum, and keeps the two newest of each rank: when a node is lost, some of its ranks may have sent their part of
the last snapshot and others not.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from checkpoint.held import HeldImage
from checkpoint.manifest import FileRecord
from checkpoint.peer_wire import (
    TIMEOUT_S,
    PeerAddress,
    ReplicaHeader,
    answer_challenge,
    challenge,
    decode_header,
    encode_header,
    new_secret,
    receive_exactly,
    receive_into,
    receive_line,
)
from checkpoint.record import decode_record
from checkpoint.shelf import Shelf
from checkpoint.slab import Slab, name_of, slab_bytes

_log = logging.getLogger(__name__)
_BLOCK_BYTES = 4 << 20
_RETRY_S = (1.0, 60.0)
"""First and longest pause before a peer that does not answer is tried again."""
_ANYWHERE = "192.0.2.1"
"""An address of nobody, set apart for texts (RFC 5737): the way there is the way to everywhere."""
_REPLICA_SLOTS = 8
"""Slots from this number on are those of replicas, so that they never meet a rank's own."""


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """An image that waits to be sent."""

    image: HeldImage
    slab: Slab
    when_over: Callable[[], None]


class ReplicaSender:
    """Sends the snapshots of one launch's ranks here to one peer, by a thread, older steps first.

    While the peer does not answer, nothing is sent and nothing waits.
    """

    def __init__(self, peer: PeerAddress) -> None:
        self._peer = peer
        self._changed = threading.Condition()
        self._waiting: dict[int, _Outgoing] = {}
        self._is_resting = False
        self._is_closing = False
        self._is_told = False
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint-replicas", daemon=True)
        self._thread.start()

    def offer(self, image: HeldImage, slab: Slab, when_over: Callable[[], None]) -> None:
        """Send an image when its turn comes, unless the rank has a newer one by then.

        `when_over` is called, by any thread, when it has been sent or will not be.
        """
        outgoing = _Outgoing(image, slab, when_over)
        with self._changed:
            if self._is_resting or self._is_closing:
                left_out: _Outgoing | None = outgoing
            else:
                left_out = self._waiting.get(image.rank)
                self._waiting[image.rank] = outgoing
                self._changed.notify_all()
        if left_out is not None:
            left_out.when_over()

    def close(self, *, wait: bool = True) -> None:
        """End it, whatever waits. Without `wait` it may still be trying to reach the peer for a while."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        pause_s = _RETRY_S[0]
        while (outgoing := self._next()) is not None:
            error: OSError | None = None
            try:
                self._send(outgoing)
                self._is_told = False
                pause_s = _RETRY_S[0]
            except ValueError:  # the slab has been given back meanwhile
                self._hang_up()
            except OSError as raised:
                error = raised
                self._hang_up()
            outgoing.when_over()
            if error is not None:
                self._tell(error)
                self._rest(pause_s)
                pause_s = min(pause_s * 2, _RETRY_S[1])
        self._hang_up()
        self._drop_waiting()

    def _tell(self, error: OSError) -> None:
        """Say once that the peer is away."""
        if not self._is_told and not self._is_closing:
            self._is_told = True
            where = f"{self._peer.host}:{self._peer.port}"
            _log.warning("peer takes no replicas, they are left out until it does peer=%s why=%s", where, error)

    def _next(self) -> _Outgoing | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            if self._is_closing:
                return None
            return self._waiting.pop(min(self._waiting, key=lambda rank: self._waiting[rank].image.serial))

    def _rest(self, pause_s: float) -> None:
        with self._changed:
            self._is_resting = True
        self._drop_waiting()
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, timeout=pause_s)
            self._is_resting = False

    def _drop_waiting(self) -> None:
        with self._changed:
            left_out = list(self._waiting.values())
            self._waiting.clear()
        for each in left_out:
            each.when_over()

    def _connected(self) -> socket.socket:
        if self._connection is None:
            connection = socket.create_connection((self._peer.host, self._peer.port), timeout=TIMEOUT_S)
            try:
                answer_challenge(connection, self._peer.secret)
            except OSError:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _send(self, outgoing: _Outgoing) -> None:
        image, slab = outgoing.image, outgoing.slab
        connection = self._connected()
        record = slab.record
        told = FileRecord(len(record), xxhash.xxh3_128_hexdigest(record))
        header = ReplicaHeader(image.ref, image.launch, image.serial, image.rank, image.world_size, image.file, told)
        connection.sendall(encode_header(header) + record)
        # The rank may fill the slab anew meanwhile; the receiver then finds a wrong checksum, and a newer one follows.
        with slab.image as payload:
            for start in range(0, image.file.bytes, _BLOCK_BYTES):
                with payload[start : min(start + _BLOCK_BYTES, image.file.bytes)] as block:
                    connection.sendall(block)
        reply = json.loads(receive_line(connection) or b"{}")
        if not reply.get("taken"):
            _log.info(
                "peer did not take a replica step=%d rank=%d why=%s", image.ref.step, image.rank, reply.get("why")
            )

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ReplicaReceiver:
    """Takes replicas from peers that know its secret, each connection by a thread of its own.

    `is_live` tells whether ranks of a launch run here: nobody would come for the replicas of another one.
    """

    def __init__(self, folder: Path, location: str, shelf: Shelf, *, host: str, is_live: Callable[[str], bool]) -> None:
        self._folder = folder
        self._location = location
        self._shelf = shelf
        self._is_live = is_live
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.address = PeerAddress(host, self._listener.getsockname()[1], new_secret())
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closing = False
        self._turn = 0
        self._thread = threading.Thread(target=self._run, name="checkpoint-peers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it; what is being received is lost."""
        self._is_closing = True
        # Closing alone does not wake a thread that waits in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        threads: list[threading.Thread] = []
        while not self._is_closing:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                # Apart from the end, that is a lack of descriptors or memory, which passes.
                if not self._is_closing:
                    _log.warning("a peer was not let in why=%s", error)
                    time.sleep(_RETRY_S[0])
                continue
            connection.settimeout(TIMEOUT_S)
            # A node that has lost its power says no good-bye.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            thread = threading.Thread(target=self._serve, args=(connection,), name="checkpoint-peer", daemon=True)
            thread.start()
            threads = [each for each in threads if each.is_alive()] + [thread]
        for thread in threads:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
        try:
            with connection:
                if not challenge(connection, self.address.secret):
                    _log.warning("somebody who does not know this launch's secret wanted to leave a replica")
                    return
                # A peer is silent between saves for as long as it likes.
                connection.settimeout(None)
                while line := receive_line(connection):
                    connection.settimeout(TIMEOUT_S)
                    why = self._take(connection, decode_header(line))
                    connection.sendall(json.dumps({"taken": not why, "why": why}).encode() + b"\n")
                    connection.settimeout(None)
        except (OSError, ValueError) as error:
            if not self._is_closing:
                _log.info("a peer's connection ended why=%s", error)
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _take(self, connection: socket.socket, header: ReplicaHeader) -> str:
        """Receive one replica; why it is not kept, or nothing."""
        record = receive_exactly(connection, header.record.bytes)
        if not self._is_live(header.launch):
            _skip(connection, header.file.bytes)
            return "no rank of that launch runs here"
        with self._lock:
            self._turn += 1
            turn = self._turn
        path = self._folder / name_of(self._location, header.launch, header.rank, _REPLICA_SLOTS + turn)
        try:
            slab = Slab.create(path, slab_bytes(header.file.bytes, len(record)))
        except OSError as error:
            _skip(connection, header.file.bytes)
            return f"there is no memory for it: {error}"
        try:
            why = self._fill(connection, slab, header, record)
        except OSError:
            slab.close(remove=True)
            raise
        if why:
            slab.close(remove=True)
            return why
        self._shelf.put_replica(slab, replace(_image_of(header), slab=str(path)))
        return ""

    def _fill(self, connection: socket.socket, slab: Slab, header: ReplicaHeader, record: bytes) -> str:
        digest = xxhash.xxh3_128()
        slab.put_record(header.file.bytes, record)
        with slab.image as payload:
            for start in range(0, header.file.bytes, _BLOCK_BYTES):
                with payload[start : min(start + _BLOCK_BYTES, header.file.bytes)] as block:
                    receive_into(connection, block)
                    digest.update(block)
        try:
            told = decode_record(record)
        except ValueError as error:
            return f"its record is damaged: {error}"
        is_same = xxhash.xxh3_128_hexdigest(record) == header.record.xxh3 and told.plan.serial == header.serial
        if digest.hexdigest() != header.file.xxh3 or not is_same:
            return "it changed while it was sent"
        return ""


def own_host(environment: Mapping[str, str]) -> str:
    """The address of this node that others of the job reach: `CHECKPOINT_ADDRESS`, else that towards `MASTER_ADDR`.

    On the master itself its own name may mean the loopback, which nobody else reaches; then it is the address towards
    everywhere.
    """
    if given := environment.get("CHECKPOINT_ADDRESS"):
        return given
    master = environment.get("MASTER_ADDR", "127.0.0.1")
    found = _towards(master)
    is_meant = master == "localhost" or _is_loopback(master)
    if found is None or (_is_loopback(found) and not is_meant):
        found = _towards(_ANYWHERE) or found
    return found or "127.0.0.1"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _towards(host: str) -> str | None:
    """The address from which this node reaches a host; nothing is sent, the kernel only looks up the way."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _image_of(header: ReplicaHeader) -> HeldImage:
    return HeldImage(
        header.ref, header.launch, header.serial, header.rank, header.world_size, "", header.file, is_replica=True
    )


def _skip(connection: socket.socket, length: int) -> None:
    while length:
        got = len(connection.recv(min(length, _BLOCK_BYTES)))
        if not got:
            raise ConnectionResetError("the peer left")
        length -= got
