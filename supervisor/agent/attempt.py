# SPDX-License-Identifier: Apache-2.0
"""One attempt on this node, from the start of its launcher until launcher and ranks are gone.

Used by the agent's loop alone. An attempt looks the same to it whether this agent started it or adopted it: everything
that matters is in the record, in /proc and in the rank folder.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from dataclasses import replace
from pathlib import Path

from supervisor.agent import facts, kernel_log, launch, processes, record, remains, torchrun_command
from supervisor.agent.api import (
    AttemptBegan,
    AttemptEnded,
    CheckpointFact,
    EvidenceKept,
    FinishAttempt,
    KeepEvidence,
    RankExit,
    RankExited,
    RanksPolled,
    StepsSeen,
    StopAttempt,
)
from supervisor.agent.evidence_thread import EvidenceThread
from supervisor.agent.exit_codes import ExitCodes
from supervisor.agent.processes import ProcessId
from supervisor.agent.record import AttemptRecord, KnownRank
from supervisor.agent.rotation import Rotation
from supervisor.agent.site import Site
from supervisor.agent.stopping import Stopping
from supervisor.agent.watching import RankWatch, StepsRead
from supervisor.training.control import ControlError, ControlPage

_log = logging.getLogger(__name__)

CONTROL_FILE = "control"
_START_LOOK_S = 0.1
_START_LASTS_S = 60.0
_LOOK_S = 10.0
_ORPHANS_S = 1.0
"""From the launcher's death until ranks that outlived it are ended: alone they can neither finish nor restart."""
_ORPHAN_GRACE_S = 5.0
_AFTER_FINISH_GRACE_S = 3.0
_FIRST_ROWS = 2
_REST_LOOK_S = 0.1
"""Between looks at what is left when the ranks are gone: nobody tells its end."""


class Attempt:
    """Begin with `resume` once the record names the launcher."""

    def __init__(self, site: Site, written: AttemptRecord) -> None:
        self.record = written
        self._site = site
        self._rank_folder = Path(written.rank_folder)
        self._command = torchrun_command.parse(written.spec.command)
        self._ranks = RankWatch(
            written.spec,
            written.attempt,
            self._rank_folder,
            written.launcher,
            is_torchrun=self._command is not None,
            is_attached=written.attached,
        )
        self._facts = facts.FactReader(self._rank_folder)
        self._rotation = Rotation(Path(written.spec.attempt_folder), written.spec.log_limit_bytes)
        self._living: dict[ProcessId, KnownRank] = {}
        self._began = time.monotonic()
        self._look_at = self._poll_at = self._began
        self._rows_told = 0
        self._reporting = 0
        self._launcher_gone_at: float | None = None
        self._launcher_code: int | None = None
        self._stopping: Stopping | None = None
        self._finish_until: float | None = None
        self._stop_after_evidence: StopAttempt | None = None
        self._evidence = EvidenceThread(site, written, self._rank_folder)
        self._signalled: set[ProcessId] = set()
        self._codes = ExitCodes()
        self._stuck_told: set[ProcessId] = set()

    @property
    def is_over(self) -> bool:
        return self.record.is_over

    @property
    def has_trained(self) -> bool:
        """Whether the first steps are done, or it has run long without any to be seen."""
        return self._rows_told >= _FIRST_ROWS or time.monotonic() > self._began + _START_LASTS_S

    def resume(self) -> None:
        """Watch what the record names, and tell that the attempt runs."""
        self.tell_begin()
        written = self.record
        for process in (written.wrapper, written.launcher):
            if process is not None:
                self._site.watch.add(process)
        ended = {each.pid for each in written.exits}
        for known in written.ranks:
            self._ranks.known[known.process] = known
            if known.process.pid not in ended:
                self._living[known.process] = known
                self._site.watch.add(known.process)
        if written.ordered_to_end:
            self._stopping = Stopping(time.monotonic() + _ORPHAN_GRACE_S)

    def tell_begin(self) -> None:
        written = self.record
        pid = written.launcher.pid if written.launcher is not None else 0
        self._site.tell_at_once(
            AttemptBegan(written.attempt, written.began_at, pid, warm=written.warm, notes=written.notes)
        )

    def on_exit(self, process: ProcessId) -> None:
        """A process that `resume` or a look had watched is gone."""
        # Before anything slow is done: their parent may wait for them at any moment.
        self._codes.keep(self._living)
        known = self._living.pop(process, None)
        if known is not None:
            self._on_rank_exit(known)
        if process == self.record.launcher:
            self._launcher_gone_at = time.monotonic()
            self._launcher_code = processes.exit_code(process)
        if process != self.record.wrapper:
            # An orphan that we adopted stays a zombie until it is waited for.
            processes.reap(process.pid)

    def tick(self, now: float) -> float:
        """Do what is due; when to be called again on the monotonic clock."""
        is_starting = now < self._began + _START_LASTS_S and not self._ranks.is_settled
        if now >= self._look_at:
            self._look()
            self._look_at = now + (_START_LOOK_S if is_starting else _LOOK_S)
        if is_starting:
            self._tell_start(now)
        if now >= self._poll_at:
            self._poll()
            self._poll_at = now + self.record.spec.report_interval_s
        wake_at = min(self._look_at, self._poll_at)
        self._check_limits(now)
        if self._stopping is not None:
            wake_at = min(wake_at, self._stop_step(self._stopping, now))
        self._check_end()
        return wake_at

    def stop(self, order: StopAttempt) -> None:
        """End every process; a second order may only make the grace shorter."""
        if self._is_only_watched():
            return
        self._write(ordered_to_end=True)
        until = time.monotonic() + order.grace_s
        if self._stopping is not None:
            self._stopping.grace_until = min(self._stopping.grace_until, until)
        elif order.evidence:
            self._stop_after_evidence = order
            self.keep_evidence(order)
        else:
            self._stop_after_evidence = None
            self._stopping = Stopping(until)

    def keep_evidence(self, order: StopAttempt | KeepEvidence) -> None:
        self._look()
        targets = list(self._living.values())
        if not targets and self.record.launcher is not None:
            targets = [KnownRank(0, 0, self.record.launcher)]
        self._evidence.begin(order, targets)

    def finish(self, order: FinishAttempt) -> None:
        """Ask for a clean end; ranks that do not know how to are asked by SIGTERM."""
        if self._stopping is not None or self._is_only_watched():
            return
        self._write(ordered_to_end=True)
        until = time.monotonic() + order.grace_s
        self._finish_until = until if self._finish_until is None else min(until, self._finish_until)
        self._look()
        self._ranks.read()
        step = self._ranks.stop_step() if order.at_step is None else order.at_step
        try:
            with contextlib.closing(ControlPage(self._rank_folder / CONTROL_FILE)) as page:
                page.request_stop(step)
        except (OSError, ControlError) as error:
            _log.error("attempt %d cannot be asked to finish: %s", self.record.attempt, error)
            self._finish_until = time.monotonic()
            return
        for known in self._living.values():
            if not self._ranks.is_instrumented(known):
                self._signal(known.process, signal.SIGTERM)

    def mark_loss_health(self, is_healthy: bool) -> None:
        try:
            with contextlib.closing(ControlPage(self._rank_folder / CONTROL_FILE)) as page:
                page.set_loss_health(is_healthy)
        except (OSError, ControlError) as error:
            _log.error("attempt %d was not told its loss health: %s", self.record.attempt, error)

    def _is_only_watched(self) -> bool:
        if self.record.attached:
            _log.warning("attempt %d is only watched, so it is not ended", self.record.attempt)
        return self.record.attached

    def _look(self) -> None:
        fresh = self._ranks.look()
        for known in fresh:
            self._living[known.process] = known
            self._site.watch.add(known.process)
        if fresh:
            self._write(ranks=(*self.record.ranks, *fresh))

    def _tell_start(self, now: float) -> None:
        """What a start-up has come to, without waiting for the next poll: imported, restored, first step."""
        self._ranks.read()
        if self._ranks.reporting != self._reporting:
            self._reporting, self._poll_at = self._ranks.reporting, now
        self._tell_progress()

    def _poll(self) -> None:
        self._tell_progress()
        self._site.tell_at_once(RanksPolled(self.record.attempt, time.time(), self._ranks.statuses(self._living)))
        self._rotation.tick([(each.rank, each.local_rank) for each in self._ranks.known.values()])
        for note in (*self._ranks.notes, *self._rotation.taken_notes()):
            _log.warning("attempt %d: %s", self.record.attempt, note)
        self._ranks.notes.clear()

    def _tell_progress(self) -> None:
        """Read after the steps and told before them: a restore comes before its first step; a commit is told last."""
        self._ranks.read()
        rows = self._ranks.taken_rows()
        fresh = self._facts.read()
        for fact in fresh:
            if not facts.is_commit(fact):
                self._site.tell(CheckpointFact(self.record.attempt, time.time(), fact))
        self._tell_steps(rows)
        for fact in fresh:
            if facts.is_commit(fact):
                self._site.tell_at_once(CheckpointFact(self.record.attempt, time.time(), fact))

    def _tell_steps(self, read: StepsRead) -> None:
        if not read.rows:
            return
        is_first = self._rows_told < _FIRST_ROWS
        self._rows_told += len(read.rows)
        told = StepsSeen(self.record.attempt, time.time(), read.source, read.rows)
        (self._site.tell_at_once if is_first else self._site.tell)(told)

    def _on_rank_exit(self, known: KnownRank) -> None:
        was_forced = self._stopping is not None and known.process in self._stopping.forced
        at, code = time.time(), self._codes.take(known.process, was_forced=was_forced)
        self._tell_progress()
        ended = RankExit(
            rank=known.rank,
            local_rank=known.local_rank,
            pid=known.process.pid,
            exit_code=code,
            at=at,
            finished=self._ranks.has_finished(known),
            by_us=known.process in self._signalled,
        )
        self._site.tell_at_once(RankExited(self.record.attempt, at, ended))
        self._write(exits=(*self.record.exits, ended))

    def _check_limits(self, now: float) -> None:
        if self._stop_after_evidence is not None and not self._evidence.is_running:
            self._stopping = Stopping(now + self._stop_after_evidence.grace_s)
            self._stop_after_evidence = None
        if self._stopping is not None or self.record.attached:
            return
        if self._finish_until is not None and now >= self._finish_until:
            self._stopping = Stopping(now + _AFTER_FINISH_GRACE_S)
        elif self._living and self._launcher_gone_at is not None and now >= self._launcher_gone_at + _ORPHANS_S:
            _log.warning("attempt %d: its launcher is gone and its ranks are not; ending them", self.record.attempt)
            self._stopping = Stopping(now + _ORPHAN_GRACE_S)

    def _stop_step(self, stopping: Stopping, now: float) -> float:
        if not self._ranks.known:
            self._look()
        states = {process: found.state for process in self._living if (found := processes.stat_of(process))}
        others = [] if states else self._launcher_or_rest()
        for each in stopping.due(now, states, others):
            self._signal(each.process, each.number)
        stuck = [each for each in stopping.stuck(now) if each not in self._stuck_told and processes.is_alive(each)]
        if stuck:
            self._stuck_told.update(stuck)
            self._site.tell_at_once(EvidenceKept(self.record.attempt, time.time(), 0, (), remains.stuck_notes(stuck)))
        return stopping.next_at(now) if states else now + _REST_LOOK_S

    def _signal(self, process: ProcessId, number: signal.Signals) -> None:
        self._signalled.add(process)
        if process == self.record.launcher:
            # A command that is its own rank may be a script whose child is what has to act.
            for pid in processes.descendants(process.pid):
                if (below := processes.identity_of(pid)) is not None:
                    processes.send(below, number)
        processes.send(process, number, to_group=process in self._living)

    def _launcher_or_rest(self) -> list[ProcessId]:
        """The launcher while it lives: to look for anything else takes long on a node with many processes."""
        launcher = self.record.launcher
        return [launcher] if launcher is not None and processes.is_alive(launcher) else self._rest()

    def _rest(self) -> list[ProcessId]:
        return remains.living(self.record, self._ranks.known)

    def _check_end(self) -> None:
        """The wrapper goes last, when it has written the exit code."""
        if self._living or self._is_still_there(self.record.wrapper) or self._is_still_there(self.record.launcher):
            return
        if self._stopping is not None and self._rest():
            return
        if self._stop_after_evidence is not None:
            return
        self._look()
        if self._living:
            return
        self._end()

    def _end(self) -> None:
        self._poll()
        code = self._launcher_code if self.record.attached else launch.kept_exit_code(Path(self.record.exit_file))
        exits = remains.exits(self.record, code, is_torchrun=self._command is not None)
        if code != 0 and not self.record.attached:
            node = self._site.record_path.parent.name
            kernel_log.keep(kernel_log.path_for(self.record.spec.attempt_folder, node), self.record.began_at)
        ended = AttemptEnded(
            attempt=self.record.attempt,
            at=time.time(),
            exit_code=code,
            ranks=exits,
            by_us=self.record.ordered_to_end,
        )
        self._write(exits=exits, ended=ended)
        self._site.tell_at_once(ended)
        self._ranks.close()
        _log.info("attempt %d ended with exit code %s", self.record.attempt, code)

    def leftovers(self) -> list[ProcessId]:
        """Processes of an ended attempt that are still there; none after a stop, which ends only when nothing is."""
        return [] if self._stopping is not None else self._rest()

    @staticmethod
    def _is_still_there(process: ProcessId | None) -> bool:
        return process is not None and processes.is_alive(process)

    def _write(self, **changes: object) -> None:
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]
        record.write_if_possible(self._site.record_path, self.record)
