# SPDX-License-Identifier: Apache-2.0
"""Decisions become calls of the outside world: scheduler, agents' orders, the fence, the diagnosis.

Every effect is idempotent, since the shell repeats it until its event arrives. Whatever fails here is told and tried
again.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from checkpoint.api import CheckpointError, ResumeGoneError
from schedulers.api import AllocationSpec, NodeState, Scheduler
from supervisor.agent import api as agent
from supervisor.controller import fences, foreign, inquest, resume
from supervisor.controller.disk import Disk
from supervisor.controller.ending import Ending
from supervisor.controller.port import OrderQueues
from supervisor.controller.run_folder import RunFolder
from supervisor.core.api import FOREIGN, Checkpoint, Policy, RunState, decisions, events, is_cut_off

_log = logging.getLogger(__name__)


class AgentUnusableError(Exception):
    """An agent ends as soon as it is started; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class AttemptTemplate:
    """What every attempt of the run has in common."""

    command: tuple[str, ...]
    working_folder: str
    environment: tuple[tuple[str, str], ...] = ()
    warm: str = "launcher"
    log_limit_bytes: int = 256 * 2**20
    step_pattern: str | None = None
    report_interval_s: float = 1.0
    resume_argument: tuple[str, ...] = ()
    """Words such as `--resume {checkpoint}`, for scripts that do not use the checkpoint library."""
    checkpoint_pattern: str | None = None
    """Glob of the checkpoints that such a script writes."""


class RunEffects:
    """Effects of one run. `ending` tells how the newest attempt ended."""

    def __init__(
        self,
        *,
        folder: RunFolder,
        scheduler: Scheduler,
        allocation: AllocationSpec,
        orders: OrderQueues,
        template: AttemptTemplate,
        policy: Policy,
        uri: str | None,
        ending: Callable[[], Ending],
        disk: Disk,
    ) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._allocation = allocation
        self._orders = orders
        self._template = template
        self._policy = policy
        self._uri = uri
        self._ending = ending
        self._disk = disk
        self._last_words: dict[str, str] = {}

    def carry_out(self, decision: decisions.Decision, state: RunState) -> events.Event | None:
        match decision:
            case decisions.Launch():
                return self._launch(decision, state)
            case decisions.Stop():
                self._stop(decision)
            case decisions.KeepEvidence():
                self._keep_evidence(decision)
            case decisions.Finish():
                self._order(agent.FinishAttempt(decision.attempt, decision.grace_s))
            case decisions.Diagnose():
                return self._diagnose(decision, state)
            case decisions.Probe():
                return events.Probed(time.time(), decision.attempt, (), state.nodes, "no node test is available here")
            case decisions.Cordon():
                self._scheduler.cordon(decision.node, decision.why)
                return events.NodeCordoned(time.time(), decision.node)
            case decisions.Release():
                self._release()
            case decisions.Notify():
                pass  # The display has told it already.
        return None

    def learn_uri(self, uri: str) -> None:
        if uri == self._uri:
            return
        self._uri = uri
        try:
            self._folder.write_description({**self._folder.read_description(), "checkpoint_uri": uri})
        except OSError as error:
            _log.warning("run.json cannot be written, so a later controller has to be told the URI: %s", error)

    def mark_health(self, state: RunState, healthy: bool) -> None:
        for node in state.nodes:
            self._orders.put(node, agent.MarkLossHealth(state.attempt, healthy))

    def look_after_agents(self) -> None:
        """An agent that died is started again and takes its attempt over; training does not notice."""
        inquest.prepare()  # Here too for a controller that launches nothing, since it took a running attempt over.
        allocation = self._scheduler.find(self._allocation.run)
        if allocation is None or any(s.state is NodeState.ENDED for s in self._scheduler.status(allocation)):
            self._tell_last_words(self._scheduler.submit(self._allocation).nodes)

    def _tell_last_words(self, nodes: tuple[str, ...]) -> None:
        """Raises AgentUnusableError for what an agent said as it ended, once for each thing that it says."""
        fresh = []
        for node in nodes:
            with contextlib.suppress(OSError):
                words = (self._folder.agents / node / agent.LAST_WORDS_FILE).read_text(errors="replace").strip()
                if words and self._last_words.get(node) != words:
                    self._last_words[node] = words
                    fresh.append(f"the agent of {node} cannot work: {words}")
        if fresh:
            raise AgentUnusableError("; ".join(fresh))

    def _order(self, order: agent.Order) -> None:
        """Agents that are gone are started again, so that somebody can answer."""
        for node in self._scheduler.submit(self._allocation).nodes:
            self._orders.put(node, order)

    def listed_foreign(self) -> tuple[Checkpoint, ...] | None:
        """The checkpoints of a script that keeps its own; none where there are ours."""
        if self._uri is not None and fences.committed(self._uri):
            return ()
        return foreign.as_checkpoints(foreign.saved(self._whereabouts()))

    def _whereabouts(self) -> foreign.Whereabouts:
        return foreign.Whereabouts(self._uri, self._template.checkpoint_pattern, self._template.working_folder)

    def _launch(self, launch: decisions.Launch, state: RunState) -> events.LaunchFailed | None:
        self._allocation = replace(self._allocation, excluded=launch.excluded)
        allocation = self._scheduler.submit(self._allocation)
        # A script that is told what to resume from keeps checkpoints in its own way, in a folder of its own.
        uri = None if self._template.resume_argument else self._uri
        unhealthy = [(each.step, each.attempt) for each in state.checkpoints if each.healthy is False]
        try:
            fences.raise_fence(uri, self._folder.path, launch, self._allocation.run, unhealthy)
        except ResumeGoneError as error:
            return events.LaunchFailed(time.time(), launch.attempt, str(error), permanent=True)
        spec = self._spec(launch, state)
        for node in allocation.nodes:
            self._orders.put(node, agent.StartAttempt(launch.attempt, spec))
        inquest.prepare()
        return None

    def _spec(self, launch: decisions.Launch, state: RunState) -> agent.LaunchSpec:
        template = self._template
        resumed = self._resumed(launch, state)
        skipped = str([[each.first, each.last] for each in launch.skipped])
        # The phase began when it was entered, so that an order that is repeated is the same one.
        trained_s = max(0.0, state.deadline - self._policy.startup_s - state.submitted_at)
        environment = (
            *template.environment,
            ("SUPERVISOR_SKIP", skipped),
            *fences.environment(launch, self._folder.path),
            ("CHECKPOINT_FAILURES", f"{state.incident}:{trained_s:.0f}"),
            *launch.environment,
        )
        return agent.LaunchSpec(
            command=resume.resumed_command(
                template.command,
                template.resume_argument,
                None if resumed is None else resumed.path,
                None if resumed is None else resumed.step,
            ),
            working_folder=template.working_folder,
            environment=environment,
            attempt_folder=str(self._folder.attempt(launch.attempt)),
            warm=template.warm,
            log_limit_bytes=template.log_limit_bytes,
            step_pattern=template.step_pattern,
            report_interval_s=template.report_interval_s,
        )

    def _resumed(self, launch: decisions.Launch, state: RunState) -> foreign.Saved | None:
        """Only for relaunches: the user's own command says how the first attempt begins."""
        if not self._template.resume_argument or launch.attempt == 1 or launch.from_nothing:
            return None
        wanted = launch.resume
        if self._uri is not None and wanted is not None and wanted.attempt != FOREIGN:
            path = fences.path_of(self._uri, wanted)
            return None if path is None else foreign.Saved(wanted.step, path)
        found = foreign.saved(self._whereabouts()) or []
        return foreign.chosen(found, wanted, lambda each: not is_cut_off(state, each))

    def _stop(self, stop: decisions.Stop) -> None:
        self._order(
            agent.StopAttempt(
                attempt=stop.attempt,
                grace_s=stop.grace_s,
                evidence=stop.evidence,
                incident=stop.incident,
                evidence_folder=str(self._folder.incident(stop.incident)),
                evidence_limit_s=self._policy.evidence_s,
            )
        )

    def _keep_evidence(self, keep: decisions.KeepEvidence) -> None:
        self._order(
            agent.KeepEvidence(
                attempt=keep.attempt,
                incident=keep.incident,
                evidence_folder=str(self._folder.incident(keep.incident)),
                evidence_limit_s=self._policy.evidence_s,
            )
        )

    def _diagnose(self, diagnose: decisions.Diagnose, state: RunState) -> events.Diagnosed:
        verdict = inquest.hold(
            attempt_folder=self._folder.attempt(diagnose.attempt),
            incident_folder=self._folder.incident(diagnose.incident),
            failure=state.failure,
            ending=self._ending(),
            full_disk=self._disk.folder if self._was_full(state) else None,
        )
        known, newest = self._stored()
        self._orders.forget(diagnose.attempt)
        return events.Diagnosed(time.time(), diagnose.attempt, verdict, known, newest, random.random())

    def _was_full(self, state: RunState) -> bool:
        return state.failure is not None and self._disk.was_full(state.failure.since)

    def stored(self) -> tuple[Checkpoint, ...] | None:
        return self._stored()[0]

    def _stored(self) -> tuple[tuple[Checkpoint, ...] | None, int]:
        """Checkpoints and newest attempt; nothing is known while the store is away, which must not hide the cause."""
        try:
            own = fences.committed(self._uri)
            newest = 0 if self._uri is None else fences.newest_attempt(self._uri, self._folder.path)
            return own or (self.listed_foreign() if self._template.resume_argument else own), newest
        except CheckpointError as error:
            _log.warning("the checkpoints cannot be listed: %s", error)
            return None, 0

    def _release(self) -> None:
        allocation = self._scheduler.find(self._allocation.run)
        for node in () if allocation is None else allocation.nodes:
            self._orders.put(node, agent.Leave())
