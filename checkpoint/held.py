# SPDX-License-Identifier: Apache-2.0
"""Snapshots that a node's writer holds in memory."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.api import CheckpointRef
from checkpoint.manifest import FileRecord


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
    is_replica: bool
