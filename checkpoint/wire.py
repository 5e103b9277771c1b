# SPDX-License-Identifier: Apache-2.0
"""What ranks and the writer of their node say to each other: JSON lines over a Unix socket.

    rank   -> Hello, then Saved or Missed for every save, Bye at a clean end
    anyone -> Drain, Inventory, Release or TakeReplicas
    writer -> Report for what became of a save; Drained; Holdings; TakingReplicas

A connection that ends without Bye belongs to a rank that died. The socket's name holds the version, so that processes
of two versions never meet.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, get_args

from checkpoint.manifest import short_digest

_VERSION = 2


class Outcome(str, Enum):
    """What became of one rank's save."""

    PERSISTED = "persisted"
    """The rank's part is durable; the slot is free again."""
    COMMITTED = "committed"
    FAILED = "failed"
    REFUSED = "refused"
    """A newer attempt has taken over."""
    HELD = "held"
    """The rank's part is checksummed and stays in memory, as was asked; the slot may be filled again."""
    NOTED = "noted"
    """The others are told that this rank has no part in it."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank of one launch, and how to commit its saves. `retention` is keep, keep_every, as for `Checkpointer`.

    `peer` is host, port and secret of the writer that gets replicas of its snapshots.
    """

    location: str
    launch: str
    attempt: int
    rank: int
    world_size: int
    retention: tuple[int, int | None]
    deadline_s: float
    events: str | None
    fence_file: str | None
    pid: int
    peer: tuple[str, int, str] | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """The slab at this path is full; `stall_s` is how long training stood for it.

    What is not `durable` only stays in memory, unless the rank dies.
    """

    serial: int
    step: int
    slab: str
    stall_s: float
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Missed:
    """This rank has no part in a save that others may have: theirs cannot be committed."""

    serial: int
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The rank ends by its own will and removes its slabs itself; with `abandon`, what is not committed is given up."""

    abandon: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Asks to be told when nothing of ranks that have died is left to write."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The answer to Drain."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Asks what is held in memory."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """The answer to Inventory; see `held.HeldImage` for the fields of each image."""

    images: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Release:
    """Lets go of what dead ranks have left in memory: for each snapshot its step, attempt and launch."""

    snapshots: list[tuple[int, int, str]]


@dataclass(frozen=True, slots=True)
class TakeReplicas:
    """Asks the writer of a store to take replicas of peers at an address of this node."""

    location: str
    host: str


@dataclass(frozen=True, slots=True)
class TakingReplicas:
    """The answer to TakeReplicas: where, and the secret that a peer has to know; port 0 if that is not possible."""

    host: str
    port: int
    secret: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a save; when it was committed, also how long training stood and the writer wrote for it."""

    serial: int
    step: int
    outcome: Outcome
    message: str = ""
    stall_s: float = 0.0
    write_s: float = 0.0


Message: TypeAlias = (
    Hello
    | Saved
    | Missed
    | Bye
    | Drain
    | Drained
    | Inventory
    | Holdings
    | Release
    | TakeReplicas
    | TakingReplicas
    | Report
)
_KINDS: dict[str, type[Message]] = {each.__name__.lower(): each for each in get_args(Message)}


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps({"kind": type(message).__name__.lower(), **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Read a line.

    Raises:
        ValueError: it is no message.
    """
    try:
        content = json.loads(line)
        message = _KINDS[content.pop("kind")](**content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no message of the checkpoint writer: {line[:200]!r}") from error
    if isinstance(message, Report):
        return replace(message, outcome=Outcome(message.outcome))
    return message


class Lines:
    """Cuts a stream into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, payload: bytes) -> list[Message]:
        """The messages that are complete with these bytes.

        Raises:
            ValueError: one is no message.
        """
        *lines, self._rest = (self._rest + payload).split(b"\n")
        return [decode(line) for line in lines]


def base_name(location: str) -> str:
    """What the names of a store's socket, lock and log in the memory folder begin with."""
    return f"{short_digest(location)}-writer-{_VERSION}"


def connect(folder: Path, location: str, *, timeout_s: float) -> socket.socket:
    """Connect to the writer of a store.

    Raises:
        OSError: none answers.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(timeout_s)
    try:
        with short_path(folder, f"{base_name(location)}.sock") as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """A path that fits into a socket's address, of 107 bytes, wherever the folder is."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
