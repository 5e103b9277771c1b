# SPDX-License-Identifier: Apache-2.0
"""Puts the parts together: the only place that knows which scheduler, journal, display and detectors a run gets."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from schedulers.api import AllocationSpec, NodeState
from schedulers.registry import open_scheduler
from supervisor.config import Settings
from supervisor.controller import fences, incident_files
from supervisor.controller.api import ControllerError, JournalRecord
from supervisor.controller.disk import Disk
from supervisor.controller.display import display_for
from supervisor.controller.effects import AttemptTemplate, RunEffects
from supervisor.controller.foreign_watch import ForeignWatch
from supervisor.controller.journal import Journal
from supervisor.controller.monitor import Monitor
from supervisor.controller.output_follower import OutputFollower
from supervisor.controller.port import ControllerPort, OrderQueues
from supervisor.controller.run_folder import RunFolder, RunLock
from supervisor.controller.shell import Shell
from supervisor.controller.steps_file import StepLine, StepsFile, read_steps
from supervisor.core.api import Mode, Outcome, RunState, Severity, events
from supervisor.detection.api import LossSample
from supervisor.inspection import replayed

ABANDONED = 3
PROOFS_TOLD = 4
LOSSES_JUDGED_AGAIN = 4096
LEAVE_S = 10.0
"""For agents to end by themselves once the run is over."""


def run(settings: Settings, command: tuple[str, ...]) -> int:
    """Supervise `command` until the run is over; the exit code says how it ended. Raises ControllerError."""
    return _supervise(settings, command, attach_to=None)


def attach(settings: Settings, target: str) -> int:
    """Watch a launch that somebody else started, by the pid of its launcher; nothing of it is changed."""
    if not target.isdigit():
        raise ControllerError(f"cannot attach to {target!r}: on this machine a launch is named by its process id")
    if settings.policy.mode is Mode.ACT:
        raise ControllerError("an attached launch can only be observed or advised: use --mode observe or advise")
    return _supervise(settings, _command_of(int(target)), attach_to=int(target))


def _command_of(pid: int) -> tuple[str, ...]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        raise ControllerError(f"no process {pid} can be read here; name the pid of a running launcher") from None
    return tuple(word.decode(errors="replace") for word in words)


def _supervise(settings: Settings, command: tuple[str, ...], attach_to: int | None) -> int:
    folder = RunFolder(settings.run.folder)
    folder.make()
    with folder.telling():
        lock = RunLock(folder)
        try:
            return _Controller(settings, folder, command, attach_to).until_over().exit_code
        finally:
            lock.release()


class _Controller:
    """One controller process of one run, from the lock to the outcome."""

    def __init__(self, settings: Settings, folder: RunFolder, command: tuple[str, ...], attach_to: int | None) -> None:
        self._settings = settings
        self._folder = folder
        self._command = command
        self._attach_to = attach_to
        self._working_folder = str(Path.cwd())
        self._policy = replace(settings.policy, spare_nodes=settings.run.spares)
        self._scheduler = open_scheduler(settings.run.scheduler, folder.scheduler)
        self._disk = Disk(folder.path)
        self._display = display_for(sys.stdout, os.environ, name_ranks=settings.launch.output == "all")

    def until_over(self) -> Outcome:
        now = time.time()
        state, ledger = replayed(self._folder)
        adopted = state is not None and not state.is_final
        uri = self._described(adopted=adopted)
        journal = Journal(self._folder.journal)
        journal.append(JournalRecord(now, policy=self._policy))
        monitor = Monitor(self._settings.detection.hang, self._settings.run.nodes)
        monitor.warm(iter(known_losses(read_steps(self._folder.steps))))
        first: events.Event = events.ControllerReturned(now)
        if state is None or not adopted:
            first = self._submission(now, uri)
        else:
            monitor.adopt(state.attempt, state.step, state.nodes, now)
        orders = OrderQueues()
        steps = StepsFile(self._folder.steps)
        effects = self._effects(orders, monitor, uri)
        shell = Shell(
            state=state,
            policy=self._policy,
            ledger=ledger,
            journal=journal,
            monitor=monitor,
            effects=effects,
            display=self._display,
            steps=steps,
            disk=self._disk,
            controller=f"pid {os.getpid()} on {socket.gethostname()}",
        )
        port = ControllerPort(self._folder, orders, shell)
        port.start()
        watch = ForeignWatch(effects.listed_foreign, shell.put, lambda: shell.state.attempt)
        if self._settings.checkpoint.resume_argument:
            watch.start()
        with self._following(shell, adopted=adopted), _signals(shell.put), contextlib.closing(watch):
            outcome = shell.run([first])
        if outcome.exit_code == ABANDONED:
            self._tell_proofs(shell.state, outcome)
        self._see_agents_out()
        port.close()
        journal.close()
        steps.close()
        self._display.close()
        return outcome

    def _tell_proofs(self, state: RunState, outcome: Outcome) -> None:
        """The lines that prove why the run was given up, with the reason once more behind them."""
        proofs = incident_files.proofs(self._folder.incident(state.incident))[:PROOFS_TOLD]
        for proof in proofs:
            self._display.told(time.time(), Severity.NOTE, f"proof: {proof}", state.incident)
        if proofs:
            self._display.told(time.time(), Severity.URGENT, outcome.text, state.incident)

    def _described(self, *, adopted: bool) -> str | None:
        """Keep run.json, and return where the checkpoints are, as far as anybody has said."""
        known = self._folder.read_description()
        command = list(self._command)
        if adopted and known.get("command") not in (None, command):
            raise ControllerError(
                f"run {self._settings.run.name} is still running another command "
                f"({shlex.join(known['command'])}); give that one to take it over, or choose another --name"
            )
        uri = self._settings.checkpoint.uri or known.get("checkpoint_uri")
        if adopted:
            # The command's relative paths count from the folder in which the run was begun.
            self._working_folder = str(known.get("working_folder", self._working_folder))
        described = {"name": self._settings.run.name, "command": command, "working_folder": self._working_folder}
        described["scheduler"] = self._settings.run.scheduler
        self._folder.write_description({**known, **described, "checkpoint_uri": uri})
        return uri

    def _submission(self, now: float, uri: str | None) -> events.RunSubmitted:
        return events.RunSubmitted(
            at=now,
            run=self._settings.run.name,
            nodes=self._settings.run.nodes,
            newest_attempt=fences.newest_attempt(uri, self._folder.path),
            attached=self._attach_to is not None,
        )

    def _effects(self, orders: OrderQueues, monitor: Monitor, uri: str | None) -> RunEffects:
        settings = self._settings
        template = AttemptTemplate(
            command=self._command,
            working_folder=self._working_folder,
            environment=settings.environment,
            warm=settings.launch.warm,
            log_limit_bytes=settings.launch.log_limit_bytes,
            step_pattern=settings.detection.step_pattern,
            report_interval_s=settings.launch.report_interval_s,
            resume_argument=settings.checkpoint.resume_argument,
            checkpoint_pattern=settings.checkpoint.pattern,
        )
        return RunEffects(
            folder=self._folder,
            scheduler=self._scheduler,
            allocation=self._allocation(),
            orders=orders,
            template=template,
            policy=self._policy,
            uri=uri,
            ending=lambda: monitor.ending,
            disk=self._disk,
        )

    def _allocation(self) -> AllocationSpec:
        command = (sys.executable, "-m", "supervisor.agent", "--run-folder", str(self._folder.path))
        attached = () if self._attach_to is None else ("--attach", str(self._attach_to))
        return AllocationSpec(
            run=self._settings.run.name,
            nodes=self._settings.run.nodes,
            agent_command=(*command, "--run", self._settings.run.name, "--node", "{node}", *attached),
            working_folder=self._working_folder,
            log_folder=str(self._folder.agents),
        )

    @contextlib.contextmanager
    def _following(self, shell: Shell, *, adopted: bool) -> Iterator[None]:
        """Show the ranks' output meanwhile, when that is wanted and their files are on this machine."""
        which = self._settings.launch.output
        if which == "none" or self._settings.run.scheduler != "local" or self._attach_to is not None:
            yield
            return
        follower = OutputFollower(lambda: self._folder.attempt(shell.state.attempt), self._display.output, which)
        if adopted:
            follower.skip_present()
        follower.start()
        try:
            yield
        finally:
            follower.close()

    def _see_agents_out(self) -> None:
        """Agents end by themselves when they are told that the run is over; what does not is ended."""
        allocation = self._scheduler.find(self._settings.run.name)
        if allocation is None:
            return
        deadline = time.monotonic() + LEAVE_S
        while any(s.state is NodeState.RUNNING for s in self._scheduler.status(allocation)):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self._scheduler.cancel(allocation)


def known_losses(rows: Iterable[StepLine]) -> list[LossSample]:
    """The newest losses that stand, oldest first: a step that was trained again counts as the last attempt had it.

    A run of months has millions of rows, and nobody watches the run while they are judged.
    """
    standing: list[StepLine] = []
    for row in reversed(deque(rows, maxlen=LOSSES_JUDGED_AGAIN)):
        if not standing or row.step < standing[-1].step:
            standing.append(row)
    return [LossSample(row.step, row.loss, row.position, row.grad_norm) for row in reversed(standing)]


@contextlib.contextmanager
def _signals(put: Callable[[events.Event], None]) -> Iterator[None]:
    """SIGTERM and SIGINT stop the run politely, the second one at once; a closed terminal only ends the display."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        put(events.StopSignalled(time.time(), signal.Signals(number).name))

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
