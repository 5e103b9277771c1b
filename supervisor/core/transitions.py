# SPDX-License-Identifier: Apache-2.0
"""The moves that every handler is made of: enter a phase, set its deadline, and say what is pending.

A phase is entered here and nowhere else, so that none can be entered without a deadline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from supervisor.core.decisions import Decision, Diagnose, Finish, Launch, Notify, Probe, Release, Stop
from supervisor.core.policy import Policy
from supervisor.core.state import CHECKPOINTS_REMEMBERED, AfterStop, Outcome, Proposal, RunState
from supervisor.core.values import FOREIGN, Checkpoint, CutOff, Phase, Severity, WaitFor

Step: TypeAlias = tuple[RunState, tuple[Decision, ...]]


def unchanged(state: RunState) -> Step:
    return state, ()


def note(text: str, incident: int = 0) -> Notify:
    return Notify(Severity.NOTE, text, incident)


def warning(text: str, incident: int = 0) -> Notify:
    return Notify(Severity.WARNING, text, incident)


def urgent(text: str, incident: int = 0) -> Notify:
    return Notify(Severity.URGENT, text, incident)


def launching(state: RunState, at: float, policy: Policy, launch: Launch, *told: Notify) -> Step:
    """Checkpoints beyond an explicit resume step become invisible in the store with this launch, so they go here."""
    launch = _with_healthy_resume(state, launch)
    state = _going_back(state, launch)
    reached = max((s for s in (state.newest_step, state.step) if s is not None), default=None)
    entered = replace(
        state,
        phase=Phase.LAUNCHING,
        attempt=launch.attempt,
        deadline=at + policy.startup_s,
        pending=launch,
        nodes=(),
        imported=False,
        resume_step=None,
        step=None,
        position=None,
        is_left_alive=False,
        restored=False,
        newest_step=reached if launch.resume is None or reached is None else max(reached, launch.resume.step),
        waiting_for=None,
        relaunch=None,
        after_stop=None,
        proposal=None,
    )
    return entered, (*told, launch)


def _with_healthy_resume(state: RunState, launch: Launch) -> Launch:
    """The checkpoint was chosen some time ago and may have turned out to be unhealthy since."""
    chosen = launch.resume
    unhealthy = {(c.step, c.attempt) for c in state.checkpoints if c.healthy is False}
    if chosen is None or (chosen.step, chosen.attempt) not in unhealthy:
        return launch
    resume = newest(state.checkpoints, step=chosen.step)
    return replace(launch, resume=resume, from_nothing=resume is None)


def _going_back(state: RunState, launch: Launch) -> RunState:
    if launch.resume is None and not launch.from_nothing:
        return state
    resume_step = -1 if launch.resume is None else launch.resume.step
    beyond = newest(c for c in state.checkpoints if c.step > resume_step)
    return state if beyond is None else rolled_back(state, launch)


def rolled_back(state: RunState, launch: Launch) -> RunState:
    """Steps and checkpoints beyond the resume step no longer count, so training them anew is progress.

    That a checkpoint is unhealthy is remembered, in case it is told of once more.
    """
    resume_step = -1 if launch.resume is None else launch.resume.step
    first = max(0, resume_step)
    reached = [each for each in (state.step, state.newest_step) if each is not None]
    reached += [c.step for c in state.checkpoints] + ([] if state.cut_off is None else [state.cut_off.newest_step])
    return replace(
        state,
        checkpoints=tuple(c for c in state.checkpoints if c.step <= resume_step or c.healthy is False),
        cut_off=CutOff(resume_step, max(reached, default=resume_step)),
        newest_step=None if state.newest_step is None else min(state.newest_step, first),
        step=None if state.step is None else min(state.step, first),
    )


def is_cut_off(state: RunState, checkpoint: Checkpoint) -> bool:
    """Whether a foreign checkpoint is from before a rollback; our own ones are hidden by the fence.

    Programs save at the same steps again, so that the one that is found once training has passed a step is a new one.
    """
    cut = state.cut_off
    if checkpoint.attempt != FOREIGN or cut is None:
        return False
    reached = max(cut.resume_step, state.step or 0, state.newest_step or 0)
    return reached < checkpoint.step <= cut.newest_step


def what_counts_of(
    stored: tuple[Checkpoint, ...] | None, state: RunState, policy: Policy
) -> tuple[Checkpoint, ...] | None:
    """The checkpoints of a store that may be resumed from; None when the listing tells nothing.

    A checkpoint once known to be unhealthy stays so, since manifests do not tell.
    """
    if stored is None or (stored == () and not may_start_over(state, policy)):
        return None  # A file system that is not mounted looks like one that holds no checkpoint.
    unhealthy = {(c.step, c.attempt) for c in state.checkpoints if c.healthy is False}
    fitting = (c for c in stored if not is_cut_off(state, c))
    marked = (replace(c, healthy=False) if (c.step, c.attempt) in unhealthy else c for c in fitting)
    return tuple(marked)[-CHECKPOINTS_REMEMBERED:]


def stopping(
    state: RunState, at: float, policy: Policy, stop: Stop | Finish, *told: Notify, after: AfterStop | None = None
) -> Step:
    evidence = policy.evidence_s if isinstance(stop, Stop) and stop.evidence else 0.0
    entered = replace(
        state,
        phase=Phase.STOPPING,
        deadline=at + stop.grace_s + evidence + policy.stop_s,
        pending=stop,
        after_stop=after,
        proposal=None,
        waiting_for=None,
    )
    return entered, (*told, stop)


def diagnosing(state: RunState, at: float, policy: Policy, *told: Notify) -> Step:
    diagnose = Diagnose(state.attempt, state.incident)
    entered = replace(
        state,
        phase=Phase.DIAGNOSING,
        deadline=at + policy.diagnose_s,
        pending=diagnose,
        after_stop=None,
        proposal=None,
        waiting_for=None,
    )
    return entered, (*told, diagnose)


def probing(state: RunState, at: float, policy: Policy, suspects: tuple[str, ...], *told: Notify) -> Step:
    probe = Probe(state.attempt, state.incident, suspects)
    entered = replace(state, phase=Phase.PROBING, deadline=at + policy.probe_s, pending=probe)
    return entered, (*told, probe)


def waiting(
    state: RunState,
    deadline: float,
    waiting_for: WaitFor,
    *told: Notify,
    relaunch: Launch | None = None,
    proposal: Proposal | None = None,
) -> Step:
    """Nothing is pending but, while the old attempt may still be alive, the stop that it was given."""
    entered = replace(
        state,
        phase=Phase.WAITING,
        deadline=deadline,
        pending=state.pending if waiting_for is WaitFor.ENDING else None,
        waiting_for=waiting_for,
        relaunch=relaunch,
        proposal=proposal,
    )
    return entered, told


def succeeded(state: RunState, told: str) -> Step:
    ended = replace(_ended(state, Phase.SUCCEEDED), failure=None, outcome=Outcome("completed", told, 0))
    return ended, (note(told), Release())


def abandoned(state: RunState, reason: str, text: str, exit_code: int = 3) -> Step:
    ended = replace(_ended(state, Phase.ABANDONED), outcome=Outcome(reason, text, exit_code))
    severity = Severity.URGENT if exit_code == 3 else Severity.NOTE
    return ended, (Notify(severity, text, state.incident), Release())


def _ended(state: RunState, phase: Phase) -> RunState:
    return replace(
        state,
        phase=phase,
        deadline=math.inf,
        pending=None,
        uncordoned=(),
        waiting_for=None,
        relaunch=None,
        after_stop=None,
        proposal=None,
    )


def newest(
    checkpoints: Iterable[Checkpoint], *, step: int | None = None, position: int | None = None
) -> Checkpoint | None:
    """The newest checkpoint not known to be unhealthy, at or below `step` and `position` where they are given."""
    fitting = [
        c
        for c in checkpoints
        if c.healthy is not False
        and (step is None or c.step <= step)
        and (position is None or (c.step if c.position is None else c.position) <= position)
    ]
    return max(fitting, key=lambda c: (c.step, c.attempt), default=None)


def may_start_over(state: RunState, policy: Policy) -> bool:
    """Whether starting anew loses no checkpoint, or no more steps than going back may; else a person decides."""
    reached = max(state.step or 0, state.newest_step or 0)
    return not state.checkpoints or reached <= policy.rollback_margin_steps


def describe_resume(launch: Launch) -> str:
    if launch.resume is not None:
        return f"step {launch.resume.step}"
    return "the beginning" if launch.from_nothing else "the newest committed checkpoint"
