# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a restore takes: the named one or the newest, else the next older that is whole.

All ranks take the same one. With a process group they divide the reading among them and agree by one small object
collective for each candidate; without one every rank reads everything and comes to the same answer.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from checkpoint.api import CheckpointError, CheckpointRef, DamagedFile, Store
from checkpoint.catalogue import Catalogue
from checkpoint.launch import Identity, Orders
from checkpoint.lineage import folder_of
from checkpoint.manifest import damaged_files

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that was not taken."""

    ref: CheckpointRef
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What to restore, None when there is nothing, and what was passed over on the way."""

    ref: CheckpointRef | None
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


def choose(store: Store, catalogue: Catalogue, orders: Orders, identity: Identity) -> Choice:
    """Verify candidates until one is whole; rank 0 sets damaged ones aside.

    Raises:
        CheckpointError: there were candidates and none of them is whole, or the ranks do not see the same store.
    """
    group = _Group(identity)
    rejected: list[Rejected] = []
    for ref in group.from_rank_0(candidates(catalogue.visible_refs(), orders, identity.attempt)):
        damage = _verify(store, ref, group)
        if not damage:
            return Choice(ref, tuple(rejected))
        why = "; ".join(str(each) for each in damage)
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
    return Choice(None)


class _Group:
    """The ranks that agree; alone when there is no process group."""

    def __init__(self, identity: Identity) -> None:
        self.rank = identity.rank
        self.is_joint = dist.is_available() and dist.is_initialized() and identity.world_size > 1
        self.shares = identity.world_size if self.is_joint else 1

    def from_rank_0(self, refs: list[CheckpointRef]) -> list[CheckpointRef]:
        told: list[list[CheckpointRef]] = [refs]
        if self.is_joint:
            dist.broadcast_object_list(told, src=0)
        return told[0]

    def everyone(self, found: object) -> list[object]:
        gathered: list[object] = [found]
        if self.is_joint:
            gathered = [None] * self.shares
            dist.all_gather_object(gathered, found)
        return gathered


def _verify(store: Store, ref: CheckpointRef, group: _Group) -> list[DamagedFile]:
    """Damage that any rank finds in its share; what only other ranks than rank 0 see is an error, not damage."""
    share = group.rank if group.is_joint else 0
    found = _inspect(store, ref, share=share, shares=group.shares)
    if not group.is_joint:
        if isinstance(found, str):
            raise CheckpointError(found)
        return found
    reports = group.everyone(found)
    errors = [each for each in reports if isinstance(each, str)]
    damage = [file for each in reports if isinstance(each, list) for file in each]
    if not damage and not errors:
        return []
    confirmed = group.everyone(_inspect(store, ref) if group.rank == 0 else None)[0]
    if errors or not isinstance(confirmed, list) or not confirmed:
        raise CheckpointError(
            f"ranks do not see the same {folder_of(ref)} in {store.location}: {'; '.join(errors) or damage[0]}; all "
            "nodes must mount the same folder and may read it"
        )
    return confirmed


def _inspect(store: Store, ref: CheckpointRef, *, share: int = 0, shares: int = 1) -> list[DamagedFile] | str:
    try:
        return damaged_files(store, folder_of(ref), share=share, shares=shares)
    except PermissionError as error:
        return f"{socket.gethostname()} may not read {folder_of(ref)}: {error}"


def _pair(ref: CheckpointRef) -> tuple[int, int]:
    return ref.step, ref.attempt
