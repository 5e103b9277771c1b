# SPDX-License-Identifier: Apache-2.0
"""Starts attempts, by the standby when it fits and cold else, and keeps the standby.

The record is written before anything runs that it would have to name: first without the launcher's ids, which a new
agent then finds by the rank folder in the launcher's environment, or, for a standby, with ids that are known already.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.agent import folders, launch, processes, record, torchrun_command, warm
from supervisor.agent.api import LaunchSpec, StartAttempt
from supervisor.agent.attempt import CONTROL_FILE
from supervisor.agent.evidence import find_py_spy
from supervisor.agent.folders import AgentFolders, FolderError
from supervisor.agent.launch import LaunchError
from supervisor.agent.processes import ProcessId
from supervisor.agent.record import AttemptRecord
from supervisor.agent.torchrun_command import TorchrunCommand
from supervisor.agent.warm import Standby, WarmError
from supervisor.training.control import ControlPage

_log = logging.getLogger(__name__)


class NotNowError(Exception):
    """The node lacks room, memory or processes for the attempt; nothing runs, and the same order may work later."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Everything about an attempt that is known before it runs."""

    order: StartAttempt
    command: TorchrunCommand | None
    environment: Mapping[str, str]
    record: AttemptRecord


class Starter:
    """Used by the agent's loop alone."""

    def __init__(self, where: AgentFolders, environment: Mapping[str, str], attach_to: int | None) -> None:
        self._folders = where
        self._attach_to = attach_to
        self._environment = environment
        self._children: list[subprocess.Popen[bytes]] = []
        self._standby: Standby | None = None
        self._standby_spec: LaunchSpec | None = None
        self._standbys = 0
        self._is_ready_told = False
        self._no_standby_for: LaunchSpec | None = None
        self._why_cold = ""

    def start(self, order: StartAttempt) -> AttemptRecord:
        """The record of the attempt that runs now, or was refused. Raises NotNowError."""
        if self._attach_to is not None:
            return self._attach(order, self._attach_to)
        try:
            prepared = self._prepare(order)
        except (FolderError, LaunchError, OSError) as error:
            return self._failed(order, error)
        started = self._start_warm(prepared)
        if started is None:
            started = self._start_cold(prepared)
        return started

    def prepare_standby(self, running: AttemptRecord) -> None:
        """Start a standby for the attempt after this one, unless there is one or there can be none."""
        if self._standby is not None and not self._standby.is_running():
            self._why_cold = f"the standby had died; see {self._folders.own / 'standby.log'}"
            self._no_standby_for = self._standby_spec
            self.end_standby()
        if self._standby is not None and not self._is_ready_told and self._standby.is_ready():
            self._is_ready_told = True
            _log.info("a standby is ready: %s", self._standby.plan.mode)
        spec = running.spec
        if running.attached:
            return
        if self._standby is not None or spec.warm == "off" or self._no_standby_for == _lasting(spec):
            return
        command = torchrun_command.parse(spec.command)
        environment = self._launch_environment(spec, running.attempt, Path(running.rank_folder))
        self._standbys += 1
        name = f"standby-{os.getpid()}-{self._standbys}"
        try:
            plan, _ = warm.plan(spec, command, environment)
            self._standby = Standby(
                plan,
                warm.standby_environment(environment, command if plan.ranks else None),
                folder=self._folders.own,
                exit_file=self._folders.exit_file(name),
            )
            self._standby_spec, self._is_ready_told = _lasting(spec), False
        except WarmError as error:
            self._no_standby_for, self._why_cold = _lasting(spec), str(error)
            _log.info("no standby: %s", error)

    def end_standby(self) -> None:
        if self._standby is not None:
            self._standby.end()
            self._standby = None

    def collect_ended(self) -> None:
        """Wait for launchers' wrappers that have ended."""
        self._children = [child for child in self._children if child.poll() is None]

    def _prepare(self, order: StartAttempt) -> _Prepared:
        spec = order.spec
        command = torchrun_command.parse(spec.command)
        if command is not None and (found := torchrun_command.conflicts(command)):
            raise LaunchError("; ".join(each.message for each in found))
        launch.check(spec, {**self._environment, **dict(spec.environment)})
        launch.make_attempt_folder(spec)
        root = folders.shared_root(self._environment)
        rank_folder = folders.make_rank_folder(root, self._folders, order.attempt)
        environment = self._launch_environment(spec, order.attempt, rank_folder)
        ControlPage.create(rank_folder / CONTROL_FILE).close()
        exit_file = self._folders.exit_file(f"attempt-{order.attempt}")
        exit_file.unlink(missing_ok=True)
        return _Prepared(
            order,
            command,
            environment,
            AttemptRecord(
                attempt=order.attempt,
                spec=spec,
                rank_folder=str(rank_folder),
                exit_file=str(exit_file),
                began_at=time.time(),
                notes=_notes(spec, command),
            ),
        )

    def _launch_environment(self, spec: LaunchSpec, attempt: int, rank_folder: Path) -> dict[str, str]:
        return launch.environment(
            self._environment,
            spec,
            run=self._folders.run,
            attempt=attempt,
            rank_folder=rank_folder,
            is_torchrun=torchrun_command.parse(spec.command) is not None,
        )

    def _start_warm(self, prepared: _Prepared) -> AttemptRecord | None:
        standby, command = self._standby, prepared.command
        if standby is None or command is None or prepared.order.spec.warm == "off":
            return None
        self._standby = None
        try:
            plan, note = warm.plan(prepared.order.spec, command, prepared.environment)
            standby.check(plan)
            wrapper, launcher = standby.ids()
            written = replace(
                prepared.record,
                exit_file=str(standby.exit_file),
                began_at=time.time(),
                warm=True,
                wrapper=wrapper,
                launcher=launcher,
                notes=(*prepared.record.notes, *([note] if note else [])),
            )
            record.write(self._folders.record, written)
            standby.hand_over(prepared.order.spec, command, prepared.environment)
        except (WarmError, OSError) as error:
            self._why_cold = str(error)
            standby.end()
            return None
        self._children.append(standby.process)
        return written

    def _start_cold(self, prepared: _Prepared) -> AttemptRecord:
        written = prepared.record
        if self._why_cold and prepared.order.spec.warm != "off":
            written = replace(written, notes=(*written.notes, f"started cold: {self._why_cold}"))
        self._why_cold = ""
        try:
            record.write(self._folders.record, written)
            child = launch.start(prepared.order.spec, prepared.environment, Path(written.exit_file))
        except (LaunchError, OSError) as error:
            return self._failed(prepared.order, error)
        self._children.append(child)
        wrapper = processes.identity_of(child.pid)
        launcher = launch.launcher_of(wrapper) if wrapper is not None else None
        written = replace(written, began_at=time.time(), wrapper=wrapper, launcher=launcher)
        record.write_if_possible(self._folders.record, written)
        return written

    def _attach(self, order: StartAttempt, pid: int) -> AttemptRecord:
        """Take the launch that runs already for the attempt; there is only this one."""
        launcher = processes.identity_of(pid)
        if launcher is None or not processes.is_alive(launcher):
            return self._refused(order, f"there is no process {pid} (any more) on this node")
        try:
            launch.make_attempt_folder(order.spec)
        except LaunchError as error:
            return self._refused(order, str(error))
        # Never made: the ranks do not know of it.
        rank_folder = folders.node_folder(folders.shared_root(self._environment), self._folders) / "attached"
        written = AttemptRecord(
            attempt=order.attempt,
            spec=order.spec,
            rank_folder=str(rank_folder),
            exit_file="",
            began_at=time.time() - processes.age_s(launcher),
            attached=True,
            launcher=launcher,
            notes=(f"attached to process {pid}: no steps but those in its output, and nothing of it is changed",),
        )
        record.write_if_possible(self._folders.record, written)
        return written

    def _failed(self, order: StartAttempt, error: Exception) -> AttemptRecord:
        if launch.will_pass(error):
            raise NotNowError(str(error)) from error
        return self._refused(order, str(error))

    def _refused(self, order: StartAttempt, why: str) -> AttemptRecord:
        written = AttemptRecord(order.attempt, order.spec, "", "", time.time(), refused=why)
        record.write_if_possible(self._folders.record, written)
        return written


def found_again(written: AttemptRecord) -> AttemptRecord:
    """The record with the ids of a launcher that an agent started just before it was killed."""
    if written.wrapper is not None or written.is_over or written.attached:
        return written
    carriers = processes.carrying("SUPERVISOR_RANK_FOLDER", written.rank_folder)
    leaders = [found for each in carriers if (found := processes.stat_of(each)) and found.session == found.pid]
    wrappers = [found.identity for found in leaders if found.name == "sh"]
    wrapper: ProcessId | None = min(wrappers, key=lambda each: each.started, default=None)
    launcher = launch.launcher_of(wrapper) if wrapper is not None else None
    return replace(written, wrapper=wrapper, launcher=launcher)


def _lasting(spec: LaunchSpec) -> LaunchSpec:
    """What of a spec decides whether there can be a standby."""
    return replace(spec, environment=(), attempt_folder="")


def _notes(spec: LaunchSpec, command: TorchrunCommand | None) -> tuple[str, ...]:
    notes = []
    if command is None:
        notes.append(
            f"{spec.command[0]} is not torchrun: its ranks' output is not kept apart, and ranks are known by RANK and "
            "LOCAL_RANK only"
        )
    if find_py_spy() is None:
        notes.append("py-spy is not installed on this node: no stacks of a hung rank that is not instrumented")
    if spec.warm != "off" and command is None:
        notes.append("started cold each time: warm starts need torchrun")
    return tuple(notes)
