# SPDX-License-Identifier: Apache-2.0
"""Commits the saves of one rank 0, each when all plans of it are there, or gives it up.

Several may wait at a time: a node that hangs holds up the save that it has no part in, and no later one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from checkpoint.api import CheckpointError, CheckpointRef, StaleAttemptError, Store
from checkpoint.catalogue import Catalogue
from checkpoint.commit import gather_plans, publish
from checkpoint.events import EventLog
from checkpoint.lineage import PARTIAL_SUFFIX, partial_folder_of, ref_of
from checkpoint.plan import RankPlan
from checkpoint.record import SaveRecord
from checkpoint.wire import Outcome, Report

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pending:
    """A save of which rank 0's own part is durable. Times are monotonic, in seconds."""

    record: SaveRecord
    own: RankPlan
    stall_s: float
    began: float
    deadline: float
    plans: dict[int, RankPlan] = field(default_factory=dict)


class Publisher:
    """One launch's saves in one store.

    `hopeless` says why a rank's plan can never come, or nothing; `tell` passes on what became of a save.
    """

    def __init__(
        self,
        store: Store,
        events: EventLog,
        retention: tuple[int, int | None],
        *,
        fence_holds: Callable[[], None],
        hopeless: Callable[[int, int], str],
        tell: Callable[[Report], None],
    ) -> None:
        self._store = store
        self._catalogue = Catalogue(store)
        self._events = events
        self._keep, self._keep_every = retention
        self._fence_holds = fence_holds
        self._hopeless = hopeless
        self._tell = tell
        self._is_hastened = False
        self.pending: list[Pending] = []

    def hasten(self, deadline: float) -> None:
        """Give up by this monotonic time what is not complete by then, and at once when a newer attempt is there."""
        self._is_hastened = True
        for save in self.pending:
            save.deadline = min(save.deadline, deadline)

    def advance(self) -> None:
        """Look at every pending save once."""
        for save in list(self.pending):
            try:
                self._advance(save)
            except StaleAttemptError as error:
                self._drop(save, Outcome.REFUSED, "commit_refused", str(error))
            except (OSError, ValueError, RuntimeError, CheckpointError) as error:
                self._drop(save, Outcome.FAILED, "save_failed", str(error))

    def _advance(self, save: Pending) -> None:
        own, ref = save.own, save.record.ref
        gather_plans(self._store, ref, own, save.plans)
        missing = [rank for rank in range(own.world_size) if rank not in save.plans]
        if not missing or any(plan.error for plan in save.plans.values()):
            self._publish(save)
            return
        if why := "; ".join(filter(None, (self._hopeless(rank, own.serial) for rank in missing))):
            raise CheckpointError(why)
        if self._is_hastened:
            self._fence_holds()
        if time.monotonic() >= save.deadline:
            names = ", ".join(map(str, missing))
            waited = time.monotonic() - save.began
            raise CheckpointError(f"rank {names} did not write its part of {ref} within {waited:.3g} s")

    def _publish(self, save: Pending) -> None:
        ref, notes = save.record.ref, save.record.notes
        plans = [save.plans[rank] for rank in sorted(save.plans)]
        manifest = publish(self._store, ref, plans, notes, fence_holds=self._fence_holds)
        self.pending.remove(save)
        write_s = time.monotonic() - save.began
        self._events.write(
            "committed",
            step=ref.step,
            checkpoint_attempt=ref.attempt,
            position=notes.position,
            healthy=notes.healthy,
            bytes=manifest.bytes,
            stall_s=save.stall_s,
            seconds=write_s,
        )
        self._retire(ref)
        told = f"bytes={manifest.bytes} seconds={write_s:.2f}"
        self._tell(Report(save.own.serial, ref.step, Outcome.COMMITTED, told, save.stall_s, write_s))

    def _drop(self, save: Pending, outcome: Outcome, event: str, message: str) -> None:
        self.pending.remove(save)
        ref = save.record.ref
        self._events.write(event, step=ref.step, message=message)
        try:
            self._store.remove(partial_folder_of(ref))
        except OSError as error:
            _log.warning("half-written checkpoint was not removed step=%d why=%s", ref.step, error)
        self._tell(Report(save.own.serial, ref.step, outcome, message))

    def _retire(self, newest: CheckpointRef) -> None:
        """Prune after a commit; a failure here is worth a warning and no more, the next commit prunes again."""
        try:
            self._catalogue.prune(keep=self._keep, keep_every=self._keep_every)
            waiting = {each.record.ref for each in self.pending}
            for folder in self._store.folders():
                ref = ref_of(folder)
                is_partial = folder.endswith(PARTIAL_SUFFIX) and ref is not None and ref.attempt == newest.attempt
                if ref and is_partial and ref < newest and ref not in waiting:
                    self._store.remove(folder)
        except (OSError, CheckpointError) as error:
            _log.warning("old checkpoints were not pruned why=%s", error)
