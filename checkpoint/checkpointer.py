# SPDX-License-Identifier: Apache-2.0
"""The object that a training script holds: save without waiting for the disk, restore what is whole.

The step path only copies; one background thread writes, and on rank 0 commits. A failed save is reported and never
raised: the previous checkpoint stands, training goes on, the next save tries again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import TracebackType
from typing import Any

from checkpoint import choose, restore
from checkpoint.api import CheckpointError, CheckpointRef, RunNotes, StaleAttemptError, Store
from checkpoint.catalogue import Catalogue
from checkpoint.commit import Notes, await_plans, publish
from checkpoint.events import EventLog
from checkpoint.interval import mttf, parse_every, parse_history
from checkpoint.launch import Orders, fence_guard, settle
from checkpoint.lineage import PARTIAL_SUFFIX, folder_of, partial_folder_of, ref_of
from checkpoint.persist import write_rank
from checkpoint.plan import RankPlan, encode_plan, plan_name
from checkpoint.schedule import make_schedule
from checkpoint.snapshot import Snapshot, Snapshotter
from checkpoint.stores import open_store

_log = logging.getLogger(__name__)
_GRACE_ON_ERROR_S = 10.0
_POLL_S = 0.02


class Checkpointer:
    """Saves and restores one run's state; every rank makes one, with the same arguments.

    Making it is collective when a process group is initialised. It opens the store, and on rank 0 moves the fence to
    this attempt, from which moment commits of older attempts do not count.

    Args:
        uri_or_path: a folder that all ranks see, as a path or `file://` URI.
        every: when `due` says yes: at multiples of this step, about each so often (`"10m"` or a timedelta), or where
            the least work is lost by saves and failures (`"auto"`); see `interval` and `schedule`.
        keep: how many visible checkpoints stay (see `lineage.expendable`).
        run: the training client, for position, skipped ranges, loss health and known pauses; see `api.RunNotes`.
        keep_every: checkpoints whose step is a multiple of this one stay for good.
        name: the run's name, for the manifest.
        deadline_s: how long rank 0 waits for the other ranks' parts before it gives a save up.
        store: another store than the one that `uri_or_path` names.

    Raises:
        StaleAttemptError: a newer attempt has taken over.
        CheckpointError: the store cannot be used.
    """

    def __init__(
        self,
        uri_or_path: str | os.PathLike[str],
        every: int | str | timedelta = 100,
        keep: int = 3,
        run: RunNotes | None = None,
        *,
        keep_every: int | None = None,
        name: str = "",
        deadline_s: float = 300.0,
        store: Store | None = None,
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep={keep} must be at least 1")
        interval = parse_every(every)
        self._keep, self._keep_every = keep, keep_every
        self._run, self._name, self._deadline_s = run, name, deadline_s
        self._store = store or open_store(os.fspath(uri_or_path))
        self._catalogue = Catalogue(self._store)
        self._orders = Orders.from_environment(os.environ)
        self._me = settle(self._catalogue, self._orders, os.environ)
        self._events = EventLog(self._orders.events, rank=self._me.rank, attempt=self._me.attempt)
        self._demand_fence = fence_guard(self._store, self._me.attempt, self._orders.fence_file)
        self._demand_fence()
        if self._me.rank == 0:
            self._catalogue.sweep(before_attempt=self._me.attempt)
        self._schedule = make_schedule(
            interval,
            self._store,
            rank=self._me.rank,
            world_size=self._me.world_size,
            token=self._me.token,
            mttf_s=mttf(parse_history(os.environ.get("CHECKPOINT_FAILURES")), self._me.world_size),
        )
        self._snapshotter = Snapshotter(self._me.rank, self._me.world_size)
        self._writer: threading.Thread | None = None
        self._abandon = threading.Event()
        self._serial = 0
        self._last: CheckpointRef | None = None
        self._has_failed = False
        self._events.write("opened", uri=self._store.location)

    @property
    def attempt(self) -> int:
        """The attempt that this process belongs to."""
        return self._me.attempt

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # Other ranks may be dead, so that the commit cannot succeed: do not hold up the news of the failure.
            self._join(_GRACE_ON_ERROR_S)
            self._abandon.set()
        self.close()

    def due(self, step: int) -> bool:
        """Whether a save is due after this step, for the interval or since the run is to stop.

        Every rank asks after every step, and all get the same answer.
        """
        is_due = self._schedule.due(step)
        return is_due or (self._run is not None and self._run.should_stop)

    def restore(self, state: dict[str, Any]) -> int | None:
        """Restore the state in place and return its step; None when there is nothing to resume from.

        Collective when a process group is initialised. Values are objects with `state_dict` and `load_state_dict`,
        tensors (copied into), and nested dicts and lists of tensors and plain values.

        Raises:
            StateMismatchError: the checkpoint does not fit the state; nothing was changed.
            CheckpointError: there are checkpoints but none is whole.
        """
        with self._phase("restore"):
            started = time.monotonic()
            self._join(None)
            choice = choose.choose(self._store, self._catalogue, self._orders, self._me)
            if choice.ref is not None and not restore.load(self._store, choice.ref, state, rank=self._me.rank):
                _log.warning(
                    "checkpoint has no random state for this rank, which keeps its own step=%d rank=%d",
                    choice.ref.step,
                    self._me.rank,
                )
            self._events.write(
                "restored",
                step=choice.ref.step if choice.ref else None,
                checkpoint_attempt=choice.ref.attempt if choice.ref else None,
                set_aside=[{"step": r.ref.step, "attempt": r.ref.attempt, "why": r.why} for r in choice.rejected],
                seconds=time.monotonic() - started,
            )
            return choice.ref.step if choice.ref else None

    def save(self, step: int, state: Mapping[str, object], wait: bool = False) -> None:
        """Save the state as it is now, after optimizer step `step`; returns when it is copied.

        Every rank calls it at the same steps. The step that was saved last is not saved again, even if that failed:
        ranks may know differently of a failure, but all know which step it was. When the previous save is still being
        written, this waits for it.

        Args:
            step: optimizer steps done.
            state: as for `restore`.
            wait: return only when the checkpoint is committed, or has failed.

        Raises:
            CheckpointError: a value of the state cannot be saved; the message names its key.
        """
        with self._phase("checkpoint"):
            started = time.monotonic()
            ref = CheckpointRef(step, self._me.attempt)
            if self._is_writing() and ref != self._last:
                self._join(None)
                self._events.write("stalled", step=step, seconds=time.monotonic() - started)
            if ref != self._last:
                self._begin(ref, state, started)
            if wait:
                self._wait()

    def wait(self) -> None:
        """Wait until the last save is committed, or has failed (which is reported, not raised)."""
        with self._phase("checkpoint"):
            self._wait()

    def close(self) -> None:
        """Wait for the last commit and give the buffers back; without it, a save in flight is lost at exit."""
        with self._phase("checkpoint"):
            self._wait()
        self._schedule.close()
        self._snapshotter.release()
        self._events.close()

    def _begin(self, ref: CheckpointRef, state: Mapping[str, object], started: float) -> None:
        self._join(None)
        self._serial += 1
        self._last, self._has_failed = ref, False
        notes = self._notes()
        snapshot = self._snapshotter.take(state)
        stall_s = time.monotonic() - started
        self._events.write("save_started", step=ref.step)
        self._writer = threading.Thread(
            target=self._write, args=(ref, snapshot, notes, stall_s), name="checkpoint-writer", daemon=True
        )
        self._writer.start()

    def _notes(self) -> Notes:
        run = self._run
        if run is None:
            return Notes(self._name, None, (), None)
        skipped = tuple((int(start), int(end)) for start, end in run.skipped)
        return Notes(self._name, run.position, skipped, run.loss_healthy)

    def _write(self, ref: CheckpointRef, snapshot: Snapshot, notes: Notes, stall_s: float) -> None:
        """The background thread: write this rank's part; on rank 0 also commit, then prune."""
        started = time.monotonic()
        try:
            self._commit(ref, self._persist(ref, snapshot), notes, stall_s, started)
        except StaleAttemptError as error:
            self._has_failed = True
            _log.error("checkpoint commit refused step=%d why=%s", ref.step, error)
            self._events.write("commit_refused", step=ref.step, message=str(error))
            self._discard(ref)
        except (OSError, ValueError, RuntimeError, CheckpointError) as error:
            self._has_failed = True
            _log.error("checkpoint save failed, the previous one stands step=%d why=%s", ref.step, error)
            self._events.write("save_failed", step=ref.step, message=str(error))
            self._discard(ref)

    def _persist(self, ref: CheckpointRef, snapshot: Snapshot) -> RankPlan:
        me, folder = self._me, partial_folder_of(ref)
        try:
            return write_rank(
                self._store,
                folder,
                snapshot,
                launch=me.token,
                serial=self._serial,
                rank=me.rank,
                world_size=me.world_size,
            )
        except OSError as error:
            if me.rank != 0:
                failed = RankPlan(me.token, self._serial, me.rank, me.world_size, error=str(error))
                self._store.write(f"{folder}/{plan_name(me.rank)}", encode_plan(failed))
            raise

    def _commit(self, ref: CheckpointRef, own: RankPlan, notes: Notes, stall_s: float, started: float) -> None:
        if self._me.rank != 0:
            return
        plans = await_plans(self._store, ref, own, deadline_s=self._deadline_s, abandon=self._abandon)
        manifest = publish(self._store, ref, plans, notes, fence_holds=self._demand_fence)
        seconds = time.monotonic() - started
        _log.info("checkpoint committed step=%d bytes=%d seconds=%.2f", ref.step, manifest.bytes, seconds)
        self._events.write(
            "committed",
            step=ref.step,
            checkpoint_attempt=ref.attempt,
            position=notes.position,
            healthy=notes.healthy,
            bytes=manifest.bytes,
            stall_s=stall_s,
            seconds=seconds,
        )
        self._schedule.saved(stall_s, seconds)
        self._retire(ref)

    def _retire(self, newest: CheckpointRef) -> None:
        """Prune after a commit; a failure here is worth a warning and no more, the next commit prunes again."""
        try:
            self._catalogue.prune(keep=self._keep, keep_every=self._keep_every)
            for folder in self._store.folders():
                ref = ref_of(folder)
                if folder.endswith(PARTIAL_SUFFIX) and ref and ref.attempt == newest.attempt and ref < newest:
                    self._store.remove(folder)
        except (OSError, CheckpointError) as error:
            _log.warning("old checkpoints were not pruned why=%s", error)

    def _discard(self, ref: CheckpointRef) -> None:
        if self._me.rank != 0:
            return
        try:
            self._store.remove(partial_folder_of(ref))
        except OSError as error:
            _log.warning("half-written checkpoint was not removed step=%d why=%s", ref.step, error)

    def _wait(self) -> None:
        """Join the writer; ranks other than 0 then watch for the commit, which shows by the folder's new name."""
        self._join(None)
        if self._me.rank == 0 or self._last is None or self._has_failed:
            return
        ends = time.monotonic() + self._deadline_s
        partial, final = partial_folder_of(self._last), folder_of(self._last)
        while time.monotonic() < ends and not self._abandon.is_set():
            folders = self._store.folders()
            if final in folders or partial not in folders:
                return
            time.sleep(_POLL_S)

    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _join(self, timeout: float | None) -> None:
        if self._writer is not None:
            self._writer.join(timeout)

    def _phase(self, name: str) -> AbstractContextManager[object]:
        return self._run.phase(name) if self._run is not None else nullcontext()
