# SPDX-License-Identifier: Apache-2.0
"""The writer's work for one rank: a thread that persists its slots in order and, for rank 0, commits.

It goes on when the rank is gone, until everything that the rank handed in is committed or cannot be any more.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from checkpoint.api import CheckpointError, CheckpointRef, Store
from checkpoint.events import EventLog
from checkpoint.holding import Holding, checksum_of
from checkpoint.lineage import PARTIAL_SUFFIX, partial_folder_of, ref_of
from checkpoint.manifest import FileRecord
from checkpoint.node_memory import Offer, keep_here
from checkpoint.persist import confess, persist
from checkpoint.plan import RankPlan
from checkpoint.record import SaveRecord, decode_record, serial_of
from checkpoint.slab import Slab, Word
from checkpoint.wire import Hello, Message, Missed, Outcome, Report, Saved, encode

if TYPE_CHECKING:
    from checkpoint.publisher import Publisher

_log = logging.getLogger(__name__)
_POLL_S = (0.01, 0.2)
"""First and longest pause between two looks for other ranks' plans."""
_ORPHAN_DEADLINE_S = 20.0
"""How long a save may still wait for other nodes when no rank of its launch lives here any more."""
_SEND_TIMEOUT_S = 5.0


class Session:
    """One rank as the writer knows it.

    `offer` is given each image that is whole. `may_commit` is set when what it takes to commit has been imported, for
    which no slot has to wait. `hopeless` tells for a rank and the number of a save why its part can never come, or
    nothing. `when_over` is called by the thread's last act.
    """

    def __init__(
        self,
        hello: Hello,
        store: Store,
        connection: socket.socket,
        *,
        may_commit: threading.Event,
        hopeless: Callable[[Hello, int, int], str],
        when_over: Callable[[], None],
        offer: Offer = keep_here,
    ) -> None:
        self.hello = hello
        self.newest = 0
        """The number of the last save that the rank said anything of."""
        self.has_died = False
        self.persisted: set[int] = set()
        """The numbers of the saves that it has made durable."""
        self.holding = Holding()
        self._store = store
        self._connection = connection
        self._may_commit = may_commit
        self._to_commit: list[tuple[SaveRecord, RankPlan, float, float]] = []
        self._hopeless = hopeless
        self._when_over = when_over
        self._offer = offer
        self._events = EventLog(hello.events, rank=hello.rank, attempt=hello.attempt)
        self._inbox: queue.Queue[Saved | Missed | None] = queue.Queue()
        self._durable = 0
        self._telling = threading.Lock()
        self._publisher: Publisher | None = None
        self._orphaned_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"checkpoint-rank-{hello.rank}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether everything is done for a rank that has left."""
        return not self._thread.is_alive()

    def take(self, message: Saved | Missed) -> None:
        """Put a save behind those that wait."""
        self.newest = message.serial
        self._inbox.put(message)

    def leave(self, *, has_died: bool) -> None:
        """The rank is gone; what it handed in is finished."""
        self.has_died = has_died
        self._inbox.put(None)

    def close(self) -> None:
        """Close the connection; for a session that is over, and that the writer listens to no more."""
        self._connection.close()

    def orphan(self, *, after_s: float = _ORPHAN_DEADLINE_S) -> None:
        """No rank of the launch lives here any more, so do not wait long for those elsewhere."""
        if self._orphaned_at is None:
            self._orphaned_at = time.monotonic() + after_s

    def clear_rest(self) -> None:
        """Remove every half-written checkpoint of the attempt; for a rank 0 that is over, and so commits no more."""
        try:
            for folder in self._store.folders():
                ref = ref_of(folder)
                if folder.endswith(PARTIAL_SUFFIX) and ref is not None and ref.attempt == self.hello.attempt:
                    self._clear(ref)
        except OSError as error:
            _log.warning("half-written checkpoints were not removed why=%s", error)

    def _run(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._when_over)
            stack.callback(self._hang_up)
            stack.callback(self._events.close)
            stack.callback(self._let_slabs_go)
            self._work()

    def _let_slabs_go(self) -> None:
        """What a dead rank has left whole is held; a rank that has left by its own will removes its slabs itself."""
        if self.has_died:
            self.holding.trim()
        else:
            self.holding.close()

    def _hang_up(self) -> None:
        """Let the rank know that nothing more comes; the writer, which still listens to it, closes the socket."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _work(self) -> None:
        has_left, pause = False, _POLL_S[0]
        while not has_left or self._is_publishing():
            try:
                message = self._inbox.get(timeout=pause if self._is_publishing() else None)
                pause = _POLL_S[0]
                if message is None:
                    has_left = True
                    self._rescue()
                else:
                    self._take(message)
            except queue.Empty:
                pause = min(pause * 1.5, _POLL_S[1])
            if self._to_commit and self._may_commit.is_set():
                self._pass_on()
            if self._publisher is not None:
                if self._orphaned_at is not None:
                    self._publisher.hasten(self._orphaned_at)
                self._publisher.advance()

    def _is_publishing(self) -> bool:
        return bool(self._to_commit) or (self._publisher is not None and bool(self._publisher.pending))

    def _take(self, message: Saved | Missed) -> None:
        ref = CheckpointRef(message.step, self.hello.attempt)
        if isinstance(message, Missed):
            self._confess(ref, message.serial, message.why)
            self._tell(Report(message.serial, message.step, Outcome.NOTED))
            return
        try:
            slab = self.holding.attach(message.slab)
            self.holding.forget(slab)
            record = _read_record(slab, message.serial)
            if message.durable:
                self._persist(slab, record, message.stall_s)
            else:
                self._keep(slab, record)
        except (OSError, ValueError, RuntimeError, CheckpointError) as error:
            self._fail(ref, message, str(error))

    def _persist(self, slab: Slab, record: SaveRecord, stall_s: float) -> None:
        """Make a slab's save durable, and on rank 0 have it committed.

        Raises:
            OSError: the store could not take it.
        """
        began = time.monotonic()
        plan = persist(self._store, slab, record, when_copied=lambda file: self._hold(slab, record, file))
        self._durable = record.plan.serial
        self.persisted.add(record.plan.serial)
        self._tell(Report(plan.serial, record.ref.step, Outcome.PERSISTED))
        if self.hello.rank == 0:
            self._to_commit.append((record, plan, stall_s, began))

    def _hold(self, slab: Slab, record: SaveRecord, file: FileRecord) -> None:
        """A slab's image is known to be whole: it stays until the rank fills the slab again, which it may."""
        image = self.holding.note(slab, record, file)
        slab.word = Word.FREE
        self._offer(image, slab, lambda: None)

    def _keep(self, slab: Slab, record: SaveRecord) -> None:
        """A snapshot for memory alone: the rank may fill the slab again when the peer has it, too."""
        image = self.holding.note(slab, record, checksum_of(slab))
        self._events.write("held", step=record.ref.step)

        def when_over() -> None:
            # Whoever holds the slab for a dead rank may have given it back by now.
            with suppress(ValueError):
                slab.word = Word.FREE
            self._tell(Report(record.plan.serial, record.ref.step, Outcome.HELD))

        self._offer(image, slab, when_over)

    def _rescue(self) -> None:
        """The rank is dead: what only its memory has, newer than all that is durable, goes to the store."""
        if not self.has_died:
            return
        for image in self.holding.images():
            if image.serial > self._durable and (slab := self.holding.find(image.slab)) is not None:
                try:
                    self._persist(slab, decode_record(slab.record), 0.0)
                except (OSError, ValueError, RuntimeError, CheckpointError) as error:
                    _log.warning("snapshot of a dead rank was not saved step=%d why=%s", image.ref.step, error)
                    self._confess(image.ref, image.serial, str(error))

    def _pass_on(self) -> None:
        # Here and not above, since it needs torch and only the node of rank 0 has to pay for that.
        from checkpoint.publisher import Pending

        publisher = self._needed_publisher()
        for record, plan, stall_s, began in self._to_commit:
            deadline = time.monotonic() + self.hello.deadline_s
            publisher.pending.append(Pending(record, plan, stall_s, began, deadline))
        self._to_commit.clear()

    def _needed_publisher(self) -> Publisher:
        from checkpoint.launch import fence_guard
        from checkpoint.publisher import Publisher

        if self._publisher is None:
            hello = self.hello
            self._publisher = Publisher(
                self._store,
                self._events,
                hello.retention,
                fence_holds=fence_guard(self._store, hello.attempt, hello.fence_file),
                hopeless=lambda rank, serial: self._hopeless(hello, rank, serial),
                tell=self._tell,
            )
        return self._publisher

    def _fail(self, ref: CheckpointRef, message: Saved, why: str) -> None:
        self._events.write("save_failed", step=ref.step, message=why)
        if self.hello.rank != 0:
            self._confess(ref, message.serial, why)
        else:
            self._clear(ref)
        slab = self.holding.find(message.slab)
        # It may have been freed before the failure, and its rank be filling it with the next save.
        if slab is not None and slab.word is Word.FULL and serial_of(slab.record) == message.serial:
            self._hold_on_to(slab, message.serial)
            slab.word = Word.FREE
        self._tell(Report(message.serial, ref.step, Outcome.FAILED, why))

    def _hold_on_to(self, slab: Slab, serial: int) -> None:
        """What the store did not take is whole in memory all the same."""
        try:
            self._hold(slab, _read_record(slab, serial), checksum_of(slab))
        except (ValueError, CheckpointError) as error:
            _log.debug("slab %s is not held why=%s", slab.path, error)

    def _confess(self, ref: CheckpointRef, serial: int, why: str) -> None:
        """Tell the other ranks by a plan; when even that fails, a deadline ends their wait."""
        hello = self.hello
        if hello.world_size == 1:
            return
        try:
            confess(self._store, ref, RankPlan(hello.launch, serial, hello.rank, hello.world_size, error=why))
        except (OSError, CheckpointError) as error:
            _log.warning("rank 0 could not be told that a save failed step=%d why=%s", ref.step, error)

    def _clear(self, ref: CheckpointRef) -> None:
        try:
            self._store.remove(partial_folder_of(ref))
        except OSError as error:
            _log.warning("half-written checkpoint was not removed step=%d why=%s", ref.step, error)

    def _tell(self, message: Message) -> None:
        """Tell the rank, if it is still there to hear."""
        try:
            with self._telling:
                self._connection.settimeout(_SEND_TIMEOUT_S)
                self._connection.sendall(encode(message))
        except OSError as error:
            _log.debug("rank %d did not hear why=%s", self.hello.rank, error)


def _read_record(slab: Slab, serial: int) -> SaveRecord:
    record = decode_record(slab.record)
    if slab.word is not Word.FULL or record.plan.serial != serial:
        raise CheckpointError(f"slab {slab.path} no longer holds save {serial} of its rank")
    return record
