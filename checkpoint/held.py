# SPDX-License-Identifier: Apache-2.0
"""Snapshots that a node's writer holds in memory: what they are, and how a process of the node asks for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkpoint.api import CheckpointRef
from checkpoint.manifest import FileRecord
from checkpoint.wire import Holdings, Inventory, Lines, Message, Release, connect, encode

_log = logging.getLogger(__name__)
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class HeldImage:
    """One rank's part of a snapshot in a slab of this node.

    `ref`, `launch`, `serial`, `rank` and `world_size` are those of the save; `slab` is the path for `Slab.attach`;
    `file` is the image's size and checksum; `is_replica` says that it came from a peer node.
    """

    ref: CheckpointRef
    launch: str
    serial: int
    rank: int
    world_size: int
    slab: str
    file: FileRecord
    is_replica: bool = False


def plain_image(image: HeldImage) -> dict[str, Any]:
    """An image as the wire has it."""
    return asdict(image)


def parse_image(content: dict[str, Any]) -> HeldImage:
    """Read what `plain_image` has made.

    Raises:
        ValueError: it is something else.
    """
    try:
        ref, file = CheckpointRef(**content["ref"]), FileRecord(**content["file"])
        return HeldImage(**{**content, "ref": ref, "file": file})
    except (KeyError, TypeError) as error:
        raise ValueError(f"no held image: {error}") from error


def held_here(folder: Path, location: str, *, deadline_s: float = 10.0) -> list[HeldImage]:
    """What the writer of a store holds in this node's memory; nothing when no writer answers by the deadline."""
    try:
        with connect(folder, location, timeout_s=deadline_s) as connection:
            connection.sendall(encode(Inventory()))
            lines, heard = Lines(), list[Message]()
            while not heard:
                payload = connection.recv(_READ_BYTES)
                if not payload:
                    return []
                heard = lines.feed(payload)
        return [parse_image(each) for message in heard if isinstance(message, Holdings) for each in message.images]
    except (OSError, ValueError) as error:
        _log.debug("no snapshot is held here why=%s", error)
        return []


def release(folder: Path, location: str, snapshots: Iterable[tuple[CheckpointRef, str]]) -> None:
    """Have the writer let go of snapshots, each told by its checkpoint and launch; without a writer there are none."""
    try:
        with connect(folder, location, timeout_s=10.0) as connection:
            connection.sendall(encode(Release([(ref.step, ref.attempt, launch) for ref, launch in snapshots])))
            # The writer answers by closing the line, when it has let go.
            connection.recv(_READ_BYTES)
    except OSError as error:
        _log.debug("nothing is held here why=%s", error)
