# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a restore takes: the named one or the newest, else the next older that is whole.

All ranks take the same one. With a process group each byte is read by one of them, and they agree by a few small
object collectives for each candidate; without one every rank reads everything and comes to the same answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checkpoint.api import CheckpointError, CheckpointRef, Store
from checkpoint.catalogue import Catalogue
from checkpoint.launch import Identity, Orders
from checkpoint.lineage import folder_of
from checkpoint.ranks import Ranks
from checkpoint.restore import Restoration
from checkpoint.tiers import StoreTier, read

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
    rejected: tuple[Rejected, ...] = ()


def candidates(visible: Sequence[CheckpointRef], orders: Orders, attempt: int) -> list[CheckpointRef]:
    """The checkpoints to try, best first: the newest, or the named one and all that are older.

    What this very attempt has committed comes before the one it was to resume from: its ranks were started again in
    place, and their own checkpoints continue from the named one.
    """
    newest_first = sorted(visible, reverse=True)
    if not orders.names_resume:
        return newest_first
    own = [ref for ref in newest_first if ref.attempt == attempt]
    resume = orders.resume
    if resume is None:
        return own
    older = [ref for ref in newest_first if ref < resume and ref not in own]
    return [*own, *(() if resume in own else (resume,)), *older]


def choose(
    store: Store, catalogue: Catalogue, orders: Orders, identity: Identity, state: dict[str, Any], ranks: Ranks
) -> Choice:
    """Read candidates until one is whole; rank 0 sets damaged ones aside. Collective; the state is not changed.

    Raises:
        StateMismatchError: the checkpoint does not fit the state of some rank.
        CheckpointError: there were candidates and none of them is whole, or the ranks do not see the same store.
    """
    rejected: list[Rejected] = []
    for ref in ranks.from_first(candidates(catalogue.visible_refs(), orders, identity.attempt)):
        found = read(StoreTier(store, ref, ranks), state, ranks, rank=identity.rank)
        if isinstance(found, Restoration):
            return Choice(ref, found, tuple(rejected))
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
    return Choice(None, None)


def _pair(ref: CheckpointRef) -> tuple[int, int]:
    return ref.step, ref.attempt
