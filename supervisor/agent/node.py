# SPDX-License-Identifier: Apache-2.0
"""The agent's loop: takes orders, starts and adopts attempts, keeps a standby, and leaves when it is told to.

One thread owns everything here. Others (link, evidence) only put into the inbox and wake the loop. At most one attempt
is alive: an order for a newer one waits until the older is gone, and one for an older or equal number starts nothing.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from supervisor.agent import processes, record
from supervisor.agent.api import (
    AttemptEnded,
    FinishAttempt,
    KeepEvidence,
    LaunchRefused,
    Leave,
    MarkLossHealth,
    Order,
    Remark,
    Report,
    StartAttempt,
    StopAttempt,
)
from supervisor.agent.attempt import Attempt
from supervisor.agent.exits import ExitWatch
from supervisor.agent.folders import AgentFolders
from supervisor.agent.leftovers import Leftovers
from supervisor.agent.link import Link
from supervisor.agent.outbox import Outbox
from supervisor.agent.record import AttemptRecord, DamagedRecordError
from supervisor.agent.site import Site
from supervisor.agent.starting import NotNowError, Starter, found_again
from supervisor.agent.unreadable import LOOK_S, UnreadableAttempt

_log = logging.getLogger(__name__)

_SIGN_OF_LIFE_S = 5.0
_REAP_S = 10.0
_LEFTOVER_GRACE_S = 5.0
_LAST_WORDS_S = 3.0
_LEAVE_GRACE_S = 5.0
ABANDONED_AFTER_S = 3600.0
"""Without an attempt and without a controller for this long, an agent leaves by itself."""


class NodeAgent:
    """`environment` is the agent's own, to which an attempt's is added; `attach_to` is a launcher to watch only."""

    def __init__(self, where: AgentFolders, environment: Mapping[str, str], attach_to: int | None = None) -> None:
        self._folders = where
        self._watch = ExitWatch()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._outbox = Outbox(where.node, os.urandom(16).hex())
        self._link = Link(
            where.run_folder, where.node, self._outbox, on_order=self._on_order, on_acknowledged=self._on_acknowledged
        )
        self._environment = environment
        self._is_attaching = attach_to is not None
        self._starter = Starter(where, environment, attach_to)
        self._site = Site(where.record, self._watch, self._outbox.add, self._tell_at_once)
        self._record: AttemptRecord | None = None
        self._attempt: Attempt | None = None
        self._waiting: StartAttempt | None = None
        self._leftovers: Leftovers | None = None
        self._unreadable: UnreadableAttempt | None = None
        self._is_leaving = False
        now = time.monotonic()
        self._life_at, self._reap_at = now, now + _REAP_S

    def run(self) -> None:
        """Work until told to leave. Raises RecordError."""
        processes.adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._on_signal())
        self._take_over()
        self._folders.last_words.unlink(missing_ok=True)
        self._link.start()
        while not (self._is_leaving and self._may_leave()):
            self._turn()
        self._leave()

    def _may_leave(self) -> bool:
        is_free = self._attempt is None or self._attempt.record.attached
        return is_free and self._waiting is None and self._unreadable is None

    def _turn(self) -> None:
        now = time.monotonic()
        wake_at = self._reap_at
        if self._attempt is not None:
            wake_at = min(wake_at, self._attempt.tick(now))
            self._look_after_attempt(self._attempt)
        if self._attempt is None:
            wake_at = min(wake_at, self._life_at)
        if self._leftovers is not None:
            wake_at = min(wake_at, self._leftovers.until)
        if self._unreadable is not None:
            wake_at = min(wake_at, now + LOOK_S)
        for process in self._watch.wait(wake_at - time.monotonic() if self._inbox.empty() else 0.0):
            if self._attempt is not None:
                self._attempt.on_exit(process)
        while not self._inbox.empty():
            self._inbox.get()()
        self._do_chores(time.monotonic())

    def _look_after_attempt(self, attempt: Attempt) -> None:
        if attempt.is_over:
            self._bury(attempt)
        elif attempt.has_trained and not attempt.record.ordered_to_end:
            self._starter.prepare_standby(attempt.record)

    def _do_chores(self, now: float) -> None:
        if self._attempt is None and now >= self._life_at:
            self._life_at = now + _SIGN_OF_LIFE_S
            self._outbox.flush()
            if now > self._link.heard_at + ABANDONED_AFTER_S:
                _log.warning("no attempt and no controller for %g s: leaving", ABANDONED_AFTER_S)
                self._is_leaving = True
        if now >= self._reap_at:
            self._reap_at = now + _REAP_S
            self._starter.collect_ended()
            processes.reap_orphans()
        if self._leftovers is not None and now >= self._leftovers.until:
            self._leftovers.kill()
            self._leftovers = None
        if self._unreadable is not None and not self._unreadable.look(now):
            self._set_aside(self._unreadable)
        if self._attempt is None and self._waiting is not None:
            order, self._waiting = self._waiting, None
            self._start(order)

    def _take_over(self) -> None:
        """Whatever an agent before this one has left; where its record is damaged, nothing starts beside what lives."""
        try:
            self._adopt(record.read(self._folders.record))
        except DamagedRecordError as error:
            self._unreadable = UnreadableAttempt(self._folders, self._environment, str(error))
            if not self._unreadable.look(time.monotonic()):
                self._set_aside(self._unreadable)
            else:
                self._remark(self._unreadable.trouble)

    def _set_aside(self, unreadable: UnreadableAttempt) -> None:
        aside, written = unreadable.set_aside()
        self._unreadable = None
        self._remark(f"{unreadable.why}; nothing of its attempt runs on this node any more, so it was moved to {aside}")
        if written is not None and not self._is_attaching:
            record.write_if_possible(self._folders.record, written)
            self._adopt(written)

    def _remark(self, text: str) -> None:
        _log.error("%s", text)
        self._tell_at_once(Remark(0, time.time(), text))

    def _adopt(self, written: AttemptRecord | None) -> None:
        """Go on with what an agent before this one had started, or tell its end if nobody acknowledged it yet."""
        self._record = written
        if written is None:
            return
        if written.is_over:
            self._outbox.stand(written.attempt, is_alive=False)
            if not written.end_acknowledged:
                self._tell_end(written)
            return
        written = found_again(written)
        record.write_if_possible(self._folders.record, written)
        _log.info("adopting attempt %d, launcher %s", written.attempt, written.launcher)
        self._begin(written)

    def _begin(self, written: AttemptRecord) -> None:
        self._record = written
        self._outbox.stand(written.attempt, is_alive=True)
        self._attempt = Attempt(self._site, written)
        self._attempt.resume()

    def _bury(self, attempt: Attempt) -> None:
        self._attempt, self._record = None, attempt.record
        self._outbox.stand(attempt.record.attempt, is_alive=False)
        self._leftovers = Leftovers(attempt, time.monotonic() + _LEFTOVER_GRACE_S)
        self._life_at = time.monotonic()

    def _start(self, order: StartAttempt) -> None:
        newest = self._record
        if newest is not None and order.attempt <= newest.attempt:
            self._repeat(newest, order.attempt)
            return
        if self._attempt is not None:
            _log.warning("attempt %d has to wait until attempt %d is gone", order.attempt, self._attempt.record.attempt)
            self._waiting = order
            self._attempt.stop(StopAttempt(self._attempt.record.attempt, _LEAVE_GRACE_S, False, 0, ""))
            return
        if self._leftovers is not None:
            self._leftovers.kill()
            self._leftovers = None
        try:
            written = self._starter.start(order)
        except NotNowError as error:
            _log.error("attempt %d cannot start now: %s", order.attempt, error)
            self._tell_at_once(LaunchRefused(order.attempt, time.time(), str(error), permanent=False))
            return
        self._outbox.stand(written.attempt, is_alive=False)
        if written.refused:
            self._record = written
            _log.error("attempt %d was refused: %s", written.attempt, written.refused)
            self._tell_end(written)
            return
        _log.info("attempt %d began, launcher %s, warm %s", written.attempt, written.launcher, written.warm)
        self._begin(written)

    def _repeat(self, newest: AttemptRecord, attempt: int) -> None:
        """Tell again how an attempt stands that was ordered before: the controller asks because it does not know."""
        if attempt == newest.attempt and newest.is_over:
            self._tell_end(newest)
        elif attempt == newest.attempt and self._attempt is not None:
            self._attempt.tell_begin()
        else:
            _log.warning("attempt %d is not started: this node knows attempt %d", attempt, newest.attempt)

    def _obey(self, order: Order) -> None:
        attempt = self._attempt
        if self._unreadable is not None:
            self._obey_beside(self._unreadable, order)
        elif isinstance(order, Leave):
            self._is_leaving = True
        elif isinstance(order, StartAttempt):
            self._start(order)
        elif attempt is None or order.attempt != attempt.record.attempt:
            if isinstance(order, (StopAttempt, FinishAttempt)):
                self._end_unknown(order.attempt)
        elif isinstance(order, StopAttempt):
            attempt.stop(order)
        elif isinstance(order, FinishAttempt):
            attempt.finish(order)
        elif isinstance(order, KeepEvidence):
            attempt.keep_evidence(order)
        elif isinstance(order, MarkLossHealth):
            attempt.mark_loss_health(order.healthy)

    def _obey_beside(self, unreadable: UnreadableAttempt, order: Order) -> None:
        """What cannot be watched can only be ended."""
        if isinstance(order, StartAttempt):
            self._tell_at_once(unreadable.refusal(order))
        elif isinstance(order, (StopAttempt, FinishAttempt)) and unreadable.is_meant_by(order):
            unreadable.stop(order.grace_s)
        elif isinstance(order, Leave):
            self._is_leaving = True
            unreadable.stop(_LEAVE_GRACE_S)

    def _end_unknown(self, attempt: int) -> None:
        """An attempt that never began here has ended with that, and may not begin later by an order that was late."""
        if self._record is not None and attempt <= self._record.attempt:
            self._repeat(self._record, attempt)
            return
        if self._attempt is not None:
            return  # An older attempt is still being ended; the controller asks again.
        if self._waiting is not None and self._waiting.attempt <= attempt:
            self._waiting = None
        self._record = record.never_begun(attempt, time.time())
        record.write_if_possible(self._folders.record, self._record)
        self._outbox.stand(attempt, is_alive=False)
        self._tell_end(self._record)

    def _tell_end(self, written: AttemptRecord) -> None:
        if written.ended is not None:
            self._tell_at_once(written.ended)
        elif written.refused:
            self._tell_at_once(LaunchRefused(written.attempt, written.began_at, written.refused))

    def _tell_at_once(self, report: Report) -> None:
        self._outbox.add(report)
        self._outbox.flush()

    def _on_order(self, order: Order) -> None:
        self._inbox.put(lambda: self._obey(order))
        self._watch.wake()

    def _on_acknowledged(self, told: tuple[Report, ...]) -> None:
        ends = {report.attempt for report in told if isinstance(report, (AttemptEnded, LaunchRefused))}
        if ends:
            self._inbox.put(lambda: self._note_acknowledged(ends))
            self._watch.wake()

    def _note_acknowledged(self, attempts: set[int]) -> None:
        written = self._record
        if written is None or written.attempt not in attempts or not written.is_over:
            return
        self._record = replace(written, end_acknowledged=True)
        record.write_if_possible(self._folders.record, self._record)

    def _on_signal(self) -> None:
        """The allocation is taken away: end what runs here, and leave."""
        self._inbox.put(self._give_up)
        self._watch.wake()

    def _give_up(self) -> None:
        self._is_leaving, self._waiting = True, None
        if self._unreadable is not None:
            self._unreadable.stop(_LEAVE_GRACE_S)
        if self._attempt is not None:
            self._attempt.stop(StopAttempt(self._attempt.record.attempt, _LEAVE_GRACE_S, False, 0, ""))

    def _leave(self) -> None:
        self._starter.end_standby()
        if self._leftovers is not None:
            self._leftovers.kill()
        self._outbox.flush()
        self._outbox.wait_until_empty(_LAST_WORDS_S)
        self._link.close()
        self._watch.close()
        _log.info("left")
