# SPDX-License-Identifier: Apache-2.0
"""The object that a training script holds: save without waiting for the disk, restore what is whole.

The step path only copies; the writer, a process of its own, writes and commits. A failed save is reported and never
raised: the previous checkpoint stands, training goes on, the next save tries again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

from checkpoint.api import CheckpointError, CheckpointRef, RunNotes, Store
from checkpoint.catalogue import Catalogue
from checkpoint.choose import choose
from checkpoint.events import EventLog
from checkpoint.held import held_here, release
from checkpoint.interval import mttf, parse_every, parse_history
from checkpoint.launch import Orders, fence_guard, rank_of, settle
from checkpoint.lineage import folder_of, partial_folder_of
from checkpoint.peer_wire import PeerAddress
from checkpoint.plan import decode_plan, plan_name
from checkpoint.ranks import joined
from checkpoint.record import Notes
from checkpoint.ring import find_peer
from checkpoint.saver import Manner, Saver, Surroundings
from checkpoint.schedule import make_schedule
from checkpoint.slab import memory_folder
from checkpoint.stores import open_store
from checkpoint.wire import Hello
from checkpoint.writer_link import ProcessLine, drain

_log = logging.getLogger(__name__)
_GRACE_ON_ERROR_S = 10.0
_DRAIN_DEADLINE_S = 30.0
_POLL_S = (0.02, 1.0)
"""First and longest pause between two looks for a commit: thousands of ranks may look."""


class Checkpointer:
    """Saves and restores one run's state; every rank makes one, with the same arguments.

    Making it is collective when a process group is initialised. It opens the store, and on rank 0 moves the fence to
    this attempt, from which moment commits of older attempts do not count.

    Args:
        uri_or_path: a folder that all ranks see, as a path or `file://` URI, or `s3://bucket/prefix` (extra `s3`).
        every: when `due` says yes: at multiples of this step, about each so often (`"10m"` or a timedelta), or where
            the least work is lost by saves and failures (`"auto"`); see `interval` and `schedule`.
        keep: how many visible checkpoints stay (see `lineage.expendable`).
        run: the training client, for position, skipped ranges, loss health and known pauses; see `api.RunNotes`.
        keep_every: checkpoints whose step is a multiple of this one stay for good.
        name: the run's name, for the manifest.
        memory_every: `due` says yes at multiples of this step, too, and a save after it only stays in the node's
            memory; when the ranks die, the newest of them is committed, so that only these few steps are lost.
        replicas: whether the next node keeps copies of this node's snapshots in its memory, so that the loss of a node
            costs no more than the death of its ranks; None leaves it to `CHECKPOINT_REPLICAS=1` in the environment.
        deadline_s: how long rank 0 waits for the other ranks' parts before it gives a save up.
        store: another store than the one that `uri_or_path` names; a thread of this process writes to it.

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
        memory_every: int | None = None,
        replicas: bool | None = None,
        deadline_s: float = 300.0,
        store: Store | None = None,
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep={keep} must be at least 1")
        if memory_every is not None and memory_every < 1:
            raise CheckpointError(f"memory_every={memory_every} must be at least 1")
        self._memory_every = memory_every
        interval = parse_every(every)
        self._run, self._name, self._deadline_s = run, name, deadline_s
        self._store = store or open_store(os.fspath(uri_or_path))
        self._catalogue = Catalogue(self._store)
        self._orders = Orders.from_environment(os.environ)
        around = Surroundings.from_environment(os.environ)
        folder = memory_folder(os.environ)
        self._is_first_of_node = around.local_rank == 0
        has_own_writer = store is not None or around.writer == "thread"
        self._memory = None if has_own_writer else folder
        if not has_own_writer and rank_of(os.environ) == 0:
            drain(folder, self._store.location, deadline_s=_DRAIN_DEADLINE_S)
        self._me = settle(self._catalogue, self._orders, os.environ)
        self._events = EventLog(self._orders.events, rank=self._me.rank, attempt=self._me.attempt)
        fence_guard(self._store, self._me.attempt, self._orders.fence_file)()
        if self._me.rank == 0:
            self._catalogue.sweep(before_attempt=self._me.attempt)
        self._schedule = make_schedule(
            interval,
            self._store,
            rank=self._me.rank,
            world_size=self._me.world_size,
            token=self._me.token,
            mttf_s=mttf(parse_history(os.environ.get("CHECKPOINT_FAILURES")), self._me.world_size),
            when_late=lambda step: self._saver.miss(step, "learned too late of it"),
        )
        self._seen: CheckpointRef | None = None
        """What was saved last, in memory or in the store."""
        self._last: CheckpointRef | None = None
        """What was saved last in the store."""
        self._for_memory: int | None = None
        """The step for which only memory is due."""
        if replicas is None:
            replicas = os.environ.get("CHECKPOINT_REPLICAS") == "1"
        peer = self._peer(around) if replicas else None
        hello = self._hello((keep, keep_every), peer)
        self._saver = Saver(
            hello,
            self._me,
            self._events,
            around,
            folder,
            store=self._store if has_own_writer else None,
            when_committed=self._schedule.saved,
        )
        self._events.write("opened", uri=self._store.location)

    @property
    def attempt(self) -> int:
        """The attempt that this process belongs to."""
        return self._me.attempt

    @property
    def skipped(self) -> int:
        """How many saves this rank has skipped since it was made, because the writer had both slots."""
        return self._saver.skipped

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # Other ranks may be dead, so that the commit cannot succeed: do not hold up the news of the failure.
        self._saver.wait(_GRACE_ON_ERROR_S)
        self._schedule.close()
        self._saver.close(abandon=True)
        self._events.close()

    def due(self, step: int) -> bool:
        """Whether a save is due after this step, for the interval or since the run is to stop.

        Every rank asks after every step, and all get the same answer.
        """
        is_due = self._schedule.due(step) or (self._run is not None and self._run.should_stop)
        is_for_memory = self._memory_every is not None and step > 0 and step % self._memory_every == 0
        self._for_memory = step if is_for_memory and not is_due else None
        return is_due or is_for_memory

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
            self._saver.wait()
            with ExitStack() as kept:
                ranks = kept.enter_context(joined(self._me))
                held = held_here(self._memory, self._store.location) if self._memory is not None else []
                choice = choose(
                    self._store, self._catalogue, self._orders, self._me, state, ranks, held=held, kept=kept
                )
                if choice.restoration is not None and not choice.restoration.apply():
                    _log.warning(
                        "checkpoint has no random state for this rank, which keeps its own rank=%d", ranks.rank
                    )
            if self._memory is not None and self._is_first_of_node and choice.served:
                release(self._memory, self._store.location, choice.served)
            self._events.write(
                "restored",
                step=choice.ref.step if choice.ref else None,
                checkpoint_attempt=choice.ref.attempt if choice.ref else None,
                tier=choice.tier,
                set_aside=[{"step": r.ref.step, "attempt": r.ref.attempt, "why": r.why} for r in choice.rejected],
                seconds=time.monotonic() - started,
            )
            self._saver.prepare(state)
            return choice.ref.step if choice.ref else None

    def prepare(self, state: Mapping[str, object]) -> None:
        """Take the memory for saves of this state now; `restore` has done it. Else the first save stalls for it.

        Raises:
            CheckpointError: there is no memory, or a value cannot be saved.
        """
        with self._phase("checkpoint"):
            self._saver.prepare(state)

    def save(self, step: int, state: Mapping[str, object], wait: bool = False, *, overlap: bool = False) -> None:
        """Save the state as it is now, after optimizer step `step`; returns when it is copied.

        Every rank calls it at the same steps. The step that was saved last is not saved again, even if that failed:
        ranks may know differently of a failure, but all know which step it was. When the writer still has both
        slots, the save is skipped and counted (event `skipped_save`); with `wait`, and when the run is asked to stop,
        this waits for a slot instead.

        Args:
            step: optimizer steps done.
            state: as for `restore`.
            wait: return only when the checkpoint is committed, or has failed.
            overlap: return while the tensors are still being copied; call `before_update` before they change, so before
                the optimizer's step, and before the forward of a model that writes values in it (batch norm does).

        Raises:
            CheckpointError: a value of the state cannot be saved; the message names its key.
        """
        with self._phase("checkpoint"):
            began = time.monotonic()
            ref = CheckpointRef(step, self._me.attempt)
            if ref != self._seen:
                self._seen = ref
                must = wait or (self._run is not None and self._run.should_stop)
                durable = must or step != self._for_memory
                if durable:
                    self._last = ref
                self._saver.save(ref, state, self._notes(), manner=Manner(must, overlap, durable), began=began)
            if wait:
                self._wait()

    def before_update(self) -> None:
        """Call it before the optimizer changes the weights when a save may `overlap`; costs nothing otherwise.

        On CUDA the host goes on: what this thread queues from now on, on the current stream, comes after the copy.
        """
        self._saver.hold()

    def wait(self) -> None:
        """Wait until the last save is committed, or has failed (which is reported, not raised)."""
        with self._phase("checkpoint"):
            self._wait()

    def close(self) -> None:
        """Wait for the last commit and give the memory back.

        Without it, the writer process still finishes the saves that all ranks have handed in.
        """
        with self._phase("checkpoint"):
            self._wait()
        self._schedule.close()
        self._saver.close()
        self._events.close()

    def _peer(self, around: Surroundings) -> PeerAddress | None:
        if self._memory is None:
            _log.warning("there are no replicas of snapshots: that takes a writer process")
            return None
        line = ProcessLine(
            self._memory, self._store.location, linger_s=around.linger_s, is_first=self._is_first_of_node
        )
        return find_peer(line, self._store.location, os.environ, self._me)

    def _hello(self, retention: tuple[int, int | None], peer: PeerAddress | None) -> Hello:
        me = self._me
        return Hello(
            location=self._store.location,
            launch=me.token,
            attempt=me.attempt,
            rank=me.rank,
            world_size=me.world_size,
            retention=retention,
            deadline_s=self._deadline_s,
            events=self._orders.events,
            fence_file=self._orders.fence_file,
            pid=os.getpid(),
            peer=(peer.host, peer.port, peer.secret) if peer else None,
        )

    def _notes(self) -> Notes:
        run = self._run
        if run is None:
            return Notes(self._name, None, (), None)
        skipped = tuple((int(start), int(end)) for start, end in run.skipped)
        return Notes(self._name, run.position, skipped, run.loss_healthy)

    def _wait(self) -> None:
        """Wait for the writer; ranks other than 0 then watch for the commit, which shows by the folder's new name."""
        self._saver.wait()
        if self._me.rank == 0 or self._last is None or self._saver.has_failed():
            return
        ends, pause = time.monotonic() + self._deadline_s, _POLL_S[0]
        partial, final = partial_folder_of(self._last), folder_of(self._last)
        while time.monotonic() < ends:
            # A store that is away for a while is no reason to end training, which only wants to know.
            with suppress(OSError):
                folders = self._store.folders()
                if final in folders or partial not in folders or self._is_given_up(partial):
                    return
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_S[1])

    def _is_given_up(self, partial: str) -> bool:
        """Whether rank 0 has said that it has no part in the save, so that nobody will commit it."""
        try:
            return bool(decode_plan(self._store.read(f"{partial}/{plan_name(0)}")).error)
        except (OSError, ValueError):
            return False

    def _phase(self, name: str) -> AbstractContextManager[object]:
        return self._run.phase(name) if self._run is not None else nullcontext()
