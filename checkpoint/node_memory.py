# SPDX-License-Identifier: Apache-2.0
"""The memory tiers as a node's writer has them: its shelf, and the ring of replicas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from checkpoint.held import HeldImage
from checkpoint.peer_wire import PeerAddress
from checkpoint.replicas import ReplicaReceiver, ReplicaSender
from checkpoint.shelf import Shelf
from checkpoint.slab import Slab
from checkpoint.wire import TakeReplicas, TakingReplicas

Offer = Callable[[HeldImage, Slab, Callable[[], None]], None]
"""Takes an image, the slab in which it lies, and what to call when it has been sent, or will not be."""


def keep_here(_image: HeldImage, _slab: Slab, when_over: Callable[[], None]) -> None:
    """An `Offer` that sends nothing."""
    when_over()


class NodeMemory:
    """What the node holds beside the slabs of living ranks. `folder` is that of slabs, None for a writer in a thread.

    `is_live` tells whether ranks of a launch run here.
    """

    def __init__(self, folder: Path | None, is_live: Callable[[str], bool]) -> None:
        self.shelf = Shelf()
        self._folder = folder
        self._is_live = is_live
        self._receiver: ReplicaReceiver | None = None
        self._senders: dict[str, ReplicaSender] = {}

    def take_replicas(self, asked: TakeReplicas) -> TakingReplicas:
        """Begin to take replicas, unless that has begun; where, or why not."""
        if self._folder is None:
            return TakingReplicas("", 0, "", "a writer in a thread keeps nothing for others")
        if self._receiver is None:
            try:
                self._receiver = ReplicaReceiver(
                    self._folder, asked.location, self.shelf, host=asked.host, is_live=self._is_live
                )
            except OSError as error:
                return TakingReplicas("", 0, "", f"{asked.host}: {error}; set CHECKPOINT_ADDRESS to one of this node")
        address = self._receiver.address
        return TakingReplicas(address.host, address.port, address.secret)

    def offering(self, launch: str, peer: tuple[str, int, str] | None) -> Offer:
        """What a launch's sessions give their images to; they go to the peer, if it has one."""
        if peer is None:
            return keep_here
        if launch not in self._senders:
            self._senders[launch] = ReplicaSender(PeerAddress(*peer))
        return self._senders[launch].offer

    def end(self, launch: str, *, has_died: bool) -> None:
        """No rank of a launch lives here. After one that has ended by its own will nobody needs what was before."""
        sender = self._senders.pop(launch, None)
        if sender is not None:
            # A peer that is lost would hold up the writer, and so the next launch, until a time-out.
            sender.close(wait=False)
        if not has_died:
            self.shelf.keep_only(self._is_live)

    def close(self) -> None:
        """Give everything back."""
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()
        if self._receiver is not None:
            self._receiver.close()
        self.shelf.clear()
