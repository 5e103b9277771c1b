# SPDX-License-Identifier: Apache-2.0
"""What two writers say to each other over TCP when one keeps replicas for the other.

    receiver -> a nonce
    sender   -> its HMAC with the receiver's secret
    sender   -> header (a JSON line), record, image; and so on for every replica
    receiver -> a JSON line for each: {"taken": true}, or false and why

Only who was told the secret is listened to. It travels over the training's own process group, and the images over the
training's own network, unencrypted as its collectives are.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass

from checkpoint.api import CheckpointRef
from checkpoint.manifest import FileRecord

TIMEOUT_S = 20.0
"""No single read or write may take longer; a peer that is slower than that counts as gone."""
_NONCE_BYTES = 32
_LONGEST_LINE = 64 << 10
_LARGEST_RECORD = 256 << 20
"""A record has some hundred bytes for each piece of the state."""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a writer takes replicas, and the secret (in hex) that shows that one may send some."""

    host: str
    port: int
    secret: str


@dataclass(frozen=True, slots=True)
class ReplicaHeader:
    """What follows: a save's record, and then its image, of these sizes and checksums."""

    ref: CheckpointRef
    launch: str
    serial: int
    rank: int
    world_size: int
    file: FileRecord
    record: FileRecord


def new_secret() -> str:
    """A secret that nobody can guess, in hex."""
    return secrets.token_hex(_NONCE_BYTES)


def challenge(connection: socket.socket, secret: str) -> bool:
    """The receiver's part of the handshake: whether the other one knows the secret."""
    nonce = os.urandom(_NONCE_BYTES)
    connection.sendall(nonce)
    return hmac.compare_digest(receive_exactly(connection, hashlib.sha256().digest_size), _answer(secret, nonce))


def answer_challenge(connection: socket.socket, secret: str) -> None:
    """The sender's part of the handshake."""
    connection.sendall(_answer(secret, receive_exactly(connection, _NONCE_BYTES)))


def encode_header(header: ReplicaHeader) -> bytes:
    """One line."""
    return json.dumps(asdict(header)).encode() + b"\n"


def decode_header(line: bytes) -> ReplicaHeader:
    """Read a header.

    Raises:
        ValueError: it is none.
    """
    try:
        content = json.loads(line)
        ref, file = CheckpointRef(**content["ref"]), FileRecord(**content["file"])
        record = FileRecord(**content["record"])
        header = ReplicaHeader(**{**content, "ref": ref, "file": file, "record": record})
        is_well = 0 <= header.rank < header.world_size and file.bytes >= 0 and 0 <= record.bytes <= _LARGEST_RECORD
    except (KeyError, TypeError) as error:
        raise ValueError(f"no header of a replica: {line[:200]!r}") from error
    if not is_well:
        raise ValueError(f"no header of a replica: {line[:200]!r}")
    return header


def receive_exactly(connection: socket.socket, length: int) -> bytes:
    """Bytes of this number.

    Raises:
        OSError: the other end is gone, or too slow.
    """
    payload = bytearray(length)
    receive_into(connection, memoryview(payload))
    return bytes(payload)


def receive_into(connection: socket.socket, payload: memoryview) -> None:
    """Fill a buffer.

    Raises:
        OSError: the other end is gone, or too slow.
    """
    at = 0
    while at < len(payload):
        got = connection.recv_into(payload[at:])
        if not got:
            raise ConnectionResetError(f"the peer left after {at} of {len(payload)} bytes")
        at += got


def receive_line(connection: socket.socket) -> bytes:
    """A line, byte by byte, since an image follows it; empty when the other end has left.

    Raises:
        OSError: it is too slow.
        ValueError: the line has no end.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            return b""
        line += byte
        if len(line) > _LONGEST_LINE:
            raise ValueError("a line of the peer has no end")
    return bytes(line)


def _answer(secret: str, nonce: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(secret), nonce, "sha256")
