# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a restore takes: the named one or the newest, else the next older that is whole.

All ranks take the same one. With a process group each byte is read by one of them, and they agree by a few small
object collectives for each candidate; without one every rank reads everything and comes to the same answer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from checkpoint.api import CheckpointError, CheckpointRef, Store
from checkpoint.catalogue import Catalogue
from checkpoint.held import HeldImage
from checkpoint.launch import Identity, Orders
from checkpoint.lineage import folder_of
from checkpoint.memory_tier import MemoryTier, whole_snapshots
from checkpoint.ranks import Ranks
from checkpoint.restore import Restoration
from checkpoint.tiers import StoreTier, agreed, read

MEMORY, STORE = "memory", "store"
"""Tiers, as the events name them."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that was not taken."""

    ref: CheckpointRef
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What to restore, read and verified, None when there is nothing, and what was passed over on the way."""

    ref: CheckpointRef | None
    restoration: Restoration | None
    tier: str = ""
    served: frozenset[tuple[CheckpointRef, str]] = frozenset()
    """Snapshots in this node's memory, with their launches, that nobody needs any more."""
    rejected: tuple[Rejected, ...] = ()


def candidates(
    visible: Sequence[CheckpointRef], orders: Orders, attempt: int, held: Collection[CheckpointRef] = ()
) -> list[CheckpointRef]:
    """The checkpoints to try, best first: the newest, or the named one and all that are older.

    What this very attempt has saved comes before the one it was to resume from: its ranks were started again in
    place, and their own checkpoints continue from the named one. A snapshot that is `held` in memory and is not
    committed counts when it is newer than all that are, and of this attempt, or, when nobody names what to resume from,
    of the last one.
    """
    oldest_attempt = attempt if orders.names_resume else attempt - 1
    newest = max(visible, default=CheckpointRef(-1, -1))
    newest_first = sorted(
        {*visible, *(ref for ref in held if ref > newest and ref.attempt >= oldest_attempt)}, reverse=True
    )
    if not orders.names_resume:
        return newest_first
    own = [ref for ref in newest_first if ref.attempt == attempt]
    resume = orders.resume
    if resume is None:
        return own
    older = [ref for ref in newest_first if ref < resume and ref not in own]
    return [*own, *(() if resume in own else (resume,)), *older]


def choose(
    store: Store,
    catalogue: Catalogue,
    orders: Orders,
    identity: Identity,
    state: dict[str, Any],
    ranks: Ranks,
    *,
    held: Sequence[HeldImage] = (),
    kept: ExitStack,
) -> Choice:
    """Read candidates until one is whole; rank 0 sets damaged ones aside. Collective; the state is not changed.

    Each is read from the nearest place that has it whole: the nodes' memory, else the store.

    Args:
        held: what this rank's node holds in memory.
        kept: to be closed when the restoration is applied.

    Raises:
        StateMismatchError: the checkpoint does not fit the state of some rank.
        CheckpointError: there were candidates and none of them is whole, or the ranks do not see the same store.
    """
    rejected: list[Rejected] = []
    snapshots = whole_snapshots(ranks.everyones(list(held)))
    visible = ranks.from_first(agreed(ranks, lambda: catalogue.visible_refs() if ranks.rank == 0 else []))
    for ref in candidates(visible, orders, identity.attempt, snapshots.keys()):
        if ref in snapshots:
            tier = kept.enter_context(closing(MemoryTier(snapshots[ref], held, ranks)))
            found = read(tier, state, ranks, rank=identity.rank)
            if isinstance(found, Restoration):
                return Choice(ref, found, MEMORY, _served(held, visible, but=ref), tuple(rejected))
            _log.warning("snapshot in memory is not taken step=%d attempt=%d why=%s", *_pair(ref), found[0])
        if ref in snapshots and ref not in visible:
            continue
        found = read(StoreTier(store, ref, ranks), state, ranks, rank=identity.rank)
        if isinstance(found, Restoration):
            return Choice(ref, found, STORE, _served(held, visible), tuple(rejected))
        why = "; ".join(str(each) for each in found)
        rejected.append(Rejected(ref, why))
        _log.warning("checkpoint is damaged, trying the next older one step=%d attempt=%d why=%s", *_pair(ref), why)
        if identity.rank == 0 and folder_of(ref) in store.folders():
            catalogue.set_aside(ref, why)
    if rejected:
        names = ", ".join(str(each.ref) for each in rejected)
        raise CheckpointError(
            f"no whole checkpoint is left in {store.location} (tried {names}); look at the damaged-* folders there, or "
            "set CHECKPOINT_RESUME=none to start from nothing"
        )
    return Choice(None, None, served=_served(held, visible))


def _served(
    held: Sequence[HeldImage], visible: Collection[CheckpointRef], but: CheckpointRef | None = None
) -> frozenset[tuple[CheckpointRef, str]]:
    """Everything that is held, but for what has just been restored, if nothing else has that."""
    return frozenset((each.ref, each.launch) for each in held if each.ref != but or each.ref in visible)


def _pair(ref: CheckpointRef) -> tuple[int, int]:
    return ref.step, ref.attempt
