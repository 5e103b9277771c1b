# SPDX-License-Identifier: Apache-2.0
"""The ranks that restore together: what they tell each other, and how bytes go from one to the next.

Everything here runs on processors, whatever the training's own backend is, since what is passed on comes from files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist

from checkpoint.launch import Identity

_LARGEST_MESSAGE_BYTES = 256 << 20
Told = TypeVar("Told")


class Ranks:
    """The ranks of a process group; or this one alone, as rank 0 of one, whichever it is in its launch.

    All methods are collective but `send` and `receive`.
    """

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None) -> None:
        self.rank = rank
        self.size = size
        self._group = group

    @property
    def is_joint(self) -> bool:
        """Whether there are others."""
        return self._group is not None

    def from_first(self, told: Told) -> Told:
        """What rank 0 has handed in."""
        box: list[Told] = [told]
        if self._group is not None:
            dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def at_first(self, told: Told) -> list[Told] | None:
        """What each rank has handed in, in their order, on rank 0; None on the others."""
        if self._group is None:
            return [told]
        gathered: list[Told] | None = [told] * self.size if self.rank == 0 else None
        dist.gather_object(told, gathered, dst=0, group=self._group)
        return gathered

    def everyones(self, told: Told) -> list[Told]:
        """What each rank has handed in, in their order."""
        gathered = [told] * self.size
        if self._group is not None:
            dist.all_gather_object(gathered, told, group=self._group)
        return gathered

    def send(self, payload: memoryview, to: int) -> list[dist.Work]:
        """Begin to send bytes to a rank; they must stay until all of what is returned has been waited for."""
        begun = [dist.isend(part, dst=to, group=self._group) for part in _parts(payload)]
        return [work for work in begun if work is not None]

    def receive(self, payload: memoryview, source: int) -> None:
        """Fill a buffer with what a rank sends."""
        for part in _parts(payload):
            dist.recv(part, src=source, group=self._group)


@contextmanager
def joined(identity: Identity) -> Iterator[Ranks]:
    """The ranks of the default process group. Collective: a group for processors is made if that has none."""
    if not (dist.is_available() and dist.is_initialized() and identity.world_size > 1):
        yield Ranks(0, 1, None)
        return
    default = dist.group.WORLD
    if "cpu:" in dist.get_backend_config(default):
        yield Ranks(identity.rank, identity.world_size, default)
        return
    group = dist.new_group(backend="gloo")
    try:
        yield Ranks(identity.rank, identity.world_size, group)
    finally:
        dist.destroy_process_group(group)


def _parts(payload: memoryview) -> list[torch.Tensor]:
    starts = range(0, len(payload), _LARGEST_MESSAGE_BYTES)
    return [torch.frombuffer(payload[at : at + _LARGEST_MESSAGE_BYTES], dtype=torch.uint8) for at in starts]
