# SPDX-License-Identifier: Apache-2.0
"""`advance`: one event in, the next state and the decisions out. Everything that changes a run's state starts here.

    LAUNCHING -> TRAINING -> STOPPING -> DIAGNOSING -> (PROBING) -> (WAITING) -> LAUNCHING ...
                    |                        |
                    v                        v
                SUCCEEDED                ABANDONED

Rules: an event of an older attempt changes nothing; a final phase is left by RunSubmitted only; no clock, no
randomness, no I/O, and no exception for anything that the world can do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from supervisor.core import answers, failures, orders, spikes
from supervisor.core import events as e
from supervisor.core.decisions import Finish, Launch, Stop
from supervisor.core.policy import Policy
from supervisor.core.state import CHECKPOINTS_REMEMBERED, AfterStop, RunState
from supervisor.core.transitions import (
    Step,
    abandoned,
    diagnosing,
    is_cut_off,
    launching,
    newest,
    note,
    stopping,
    succeeded,
    unchanged,
    urgent,
    waiting,
    warning,
)
from supervisor.core.values import Failure, FailureKind, Phase, WaitFor

if sys.version_info >= (3, 11):
    from typing import assert_never
else:
    from typing_extensions import assert_never


def submit(state: RunState | None, event: e.RunSubmitted, policy: Policy) -> Step:
    """The first event of a run, and the one that takes an ended run up again; a living run is left alone."""
    if state is not None and not state.is_final:
        return unchanged(state)
    known = 0 if state is None else state.attempt
    launch = Launch(max(known, event.newest_attempt) + 1)
    left_alive = state is not None and state.is_left_alive and not event.attached
    if state is None:
        fresh = RunState(event.run, Phase.LAUNCHING, known, event.at, event.at, event.nodes, event.attached)
    else:
        launch = replace(launch, skipped=state.skipped)
        fresh = replace(
            state,
            node_count=event.nodes,
            attached=event.attached,
            excluded=(),
            failure=None,
            past=(),
            tries_without_progress=0,
            rollbacks=0,
            spike=None,
            environment=(),
            frozen=False,
            outcome=None,
        )
    if left_alive:
        stop = Stop(known, fresh.incident, policy.stop_grace_s, evidence=False)
        told = warning(f"attempt {known} was never seen to end; it is stopped before attempt {launch.attempt}")
        after = AfterStop("relaunch", "supervisor run", launch)
        return stopping(fresh, event.at, policy, stop, told, after=after)
    return launching(fresh, event.at, policy, launch)


def advance(state: RunState | None, event: e.Event, policy: Policy) -> Step:
    """The state after `event` and what is to be done about it.

    Raises ValueError only for a journal that does not begin with RunSubmitted.
    """
    if state is None:
        if not isinstance(event, e.RunSubmitted):
            raise ValueError(f"the first event of a run is RunSubmitted, not {type(event).__name__}")
        return submit(None, event, policy)
    if state.is_final and not isinstance(event, e.RunSubmitted):
        return unchanged(state)
    if getattr(event, "attempt", state.attempt) != state.attempt:
        return unchanged(state)
    return _advance_begun(state, event, policy)


def _advance_begun(state: RunState, event: e.Event, policy: Policy) -> Step:  # noqa: C901  (one line a kind of event)
    match event:
        case e.RunSubmitted():
            return submit(state, event, policy)
        case e.ControllerReturned():
            return _on_controller_returned(state, event, policy)
        case e.AttemptStarted():
            return _on_attempt_started(state, event)
        case e.LaunchFailed():
            return _on_launch_failed(state, event, policy)
        case e.RanksImported():
            return (state if state.phase is not Phase.LAUNCHING else replace(state, imported=True)), ()
        case e.AttemptRestored():
            return _on_attempt_restored(state, event)
        case e.ProgressSampled():
            return _on_progress_sampled(state, event, policy)
        case e.CheckpointCommitted():
            return _on_checkpoint_committed(state, event)
        case e.RankFailed():
            return failures.on_rank_failed(state, event, policy)
        case e.HangFound():
            return failures.on_hang_found(state, event, policy)
        case e.LossSpiked():
            return failures.on_loss_spiked(state, event, policy)
        case e.AttemptEnded():
            return _on_attempt_ended(state, event, policy)
        case e.Diagnosed():
            return answers.on_diagnosed(state, event, policy)
        case e.Probed():
            return answers.on_probed(state, event, policy)
        case e.NodeCordoned():
            return replace(state, uncordoned=tuple(c for c in state.uncordoned if c.node != event.node)), ()
        case e.OrderGiven():
            return orders.on_order_given(state, event, policy)
        case e.StopSignalled():
            return orders.on_stop_signalled(state, event, policy)
        case e.TimePassed():
            return unchanged(state) if event.at < state.deadline else ON_DEADLINE[state.phase](state, event.at, policy)
    assert_never(event)


def _on_controller_returned(state: RunState, event: e.ControllerReturned, policy: Policy) -> Step:
    """Nobody watched, so nothing may be concluded from the time that went by: live phases get their full time again."""
    allowance = {
        Phase.LAUNCHING: policy.startup_s,
        Phase.TRAINING: policy.report_silence_s,
        Phase.STOPPING: policy.finish_grace_s + policy.evidence_s + policy.stop_s,
        Phase.DIAGNOSING: policy.diagnose_s,
        Phase.PROBING: policy.probe_s,
    }.get(state.phase)
    if allowance is None:
        return unchanged(state)
    return replace(state, deadline=event.at + allowance), ()


def _on_attempt_started(state: RunState, event: e.AttemptStarted) -> Step:
    pending = None if isinstance(state.pending, Launch) else state.pending
    return replace(state, pending=pending, nodes=event.nodes), ()


def _on_launch_failed(state: RunState, event: e.LaunchFailed, policy: Policy) -> Step:
    """A launch that may work later is tried again by the shell until the phase's deadline."""
    if state.phase is not Phase.LAUNCHING or not event.permanent:
        return unchanged(state)
    if not isinstance(state.pending, Launch):
        return failures.on_part_not_launched(state, event, policy)
    return abandoned(state, "LaunchFailed", f"attempt {state.attempt} could not be started: {event.message}")


def _on_attempt_restored(state: RunState, event: e.AttemptRestored) -> Step:
    """Taken while training too until there was a step: an attempt whose imports are slow counts as one without any."""
    is_late = state.phase is Phase.TRAINING and state.step is None
    if state.phase is not Phase.LAUNCHING and not is_late:
        return unchanged(state)
    told = (urgent(event.note, state.incident),) if event.note and not state.restored else ()
    return replace(state, resume_step=event.step, imported=True, restored=True), told


def _on_progress_sampled(state: RunState, event: e.ProgressSampled, policy: Policy) -> Step:
    advanced = event.step is not None and (state.step is None or event.step > state.step)
    step = event.step if advanced else state.step
    if state.phase is Phase.STOPPING and advanced:
        return replace(state, step=step, position=event.position), ()
    if state.phase not in (Phase.LAUNCHING, Phase.TRAINING):
        return unchanged(state)
    moved = replace(
        state,
        phase=Phase.TRAINING,
        deadline=event.at + policy.report_silence_s,
        pending=None,
        step=step,
        position=state.position if event.position is None else event.position,
    )
    told = []
    failure = state.failure
    if failure is not None and failure.attempt < state.attempt:
        told.append(note(f"attempt {state.attempt} trains again, step {step}", failure.incident))
        moved = replace(moved, failure=None)
    elif failure is not None and _refutes(failure, advanced=advanced or event.step is None):
        text = f"training goes on (step {step}); the suspicion of incident {failure.incident} is withdrawn"
        told.append(note(text, failure.incident))
        moved = replace(moved, failure=None, proposal=None)
    settled, more = spikes.settle_spike(moved, policy)
    return settled, (*told, *more)


def _refutes(failure: Failure, *, advanced: bool) -> bool:
    """A sample says that agents report again; that a hang is over takes a new step where there are steps."""
    return failure.kind in (FailureKind.LOST, FailureKind.LAUNCH) or (failure.kind is FailureKind.HANG and advanced)


def _on_checkpoint_committed(state: RunState, event: e.CheckpointCommitted) -> Step:
    """Told again, its health may get worse and never better."""
    fresh = event.checkpoint
    if is_cut_off(state, fresh):
        return unchanged(state)
    checkpoints = []
    for known in state.checkpoints:
        is_same = (known.step, known.attempt) == (fresh.step, fresh.attempt)
        checkpoints.append(known if not is_same or known.healthy is False else fresh)
    if not any((c.step, c.attempt) == (fresh.step, fresh.attempt) for c in checkpoints):
        checkpoints.append(fresh)
    return replace(state, checkpoints=tuple(checkpoints[-CHECKPOINTS_REMEMBERED:])), ()


def _on_attempt_ended(state: RunState, event: e.AttemptEnded, policy: Policy) -> Step:
    if state.phase in (Phase.LAUNCHING, Phase.TRAINING):
        if event.succeeded:
            return succeeded(state, f"attempt {state.attempt} completed the run{_at_step(state)}")
        return failures.on_attempt_failed(state, event, policy)
    if state.phase is Phase.STOPPING or state.waiting_for is WaitFor.ENDING:
        return _on_stopped(state, event, policy)
    return unchanged(state)


def _on_stopped(state: RunState, event: e.AttemptEnded, policy: Policy) -> Step:
    after = state.after_stop
    if after is None:
        if event.succeeded:
            return succeeded(state, f"attempt {state.attempt} completed the run while it was being stopped")
        return diagnosing(state, event.at, policy)
    saved = newest(state.checkpoints)
    kept = "no checkpoint is committed" if saved is None else f"the newest committed checkpoint is of step {saved.step}"
    if after.what == "leave":
        again = "starts from the beginning" if saved is None else "goes on from there"
        text = f"stopped by {after.told_by}{_at_step(state)}; {kept}; `supervisor run` {again}"
        return abandoned(state, "ExternalStop", text, after.exit_code)
    if after.what == "pause":
        text = f"paused by {after.told_by}{_at_step(state)}; {kept}; `supervisor resume` goes on"
        deadline = event.at + policy.person_s
        return waiting(state, deadline, WaitFor.PERSON, note(text), relaunch=answers.newest_launch(state))
    launch = after.launch or answers.newest_launch(state)
    return launching(state, event.at, policy, launch)


def _at_step(state: RunState) -> str:
    """An attempt that has only restored stands where its checkpoint does; a script may have no steps at all."""
    step = state.resume_step if state.step is None else state.step
    return "" if step is None else f" at step {step}"


def _on_stop_overdue(state: RunState, at: float, policy: Policy) -> Step:
    if isinstance(state.pending, Finish):
        stop = Stop(state.attempt, state.incident, 0.0, evidence=False)
        told = urgent(f"attempt {state.attempt} did not leave in time; it is killed", state.incident)
        return stopping(state, at, policy, stop, told, after=state.after_stop)
    text = (
        f"attempt {state.attempt} cannot be stopped: a process may be in uninterruptible sleep or its node cut off; "
        "no new attempt is launched while it may be alive; reboot or reset its node"
    )
    return waiting(state, at + policy.person_s, WaitFor.ENDING, urgent(text, state.incident))


def _on_wait_over(state: RunState, at: float, policy: Policy) -> Step:
    """A person who froze the run or took a power away in the meantime is asked."""
    assert state.waiting_for is not None
    if state.waiting_for in (WaitFor.RETRY, WaitFor.SERVICE):
        assert state.relaunch is not None
        return answers.relaunch(state, at, policy, state.relaunch, 0.0)
    text = f"still waiting for {state.waiting_for.value}" + (f": {state.proposal.text}" if state.proposal else "")
    return replace(state, deadline=at + policy.person_s), (urgent(text, state.incident),)


ON_DEADLINE: dict[Phase, Callable[[RunState, float, Policy], Step]] = {
    Phase.LAUNCHING: failures.on_no_first_step,
    Phase.TRAINING: failures.on_no_reports,
    Phase.STOPPING: _on_stop_overdue,
    Phase.DIAGNOSING: answers.on_diagnosis_overdue,
    Phase.PROBING: answers.on_probe_overdue,
    Phase.WAITING: _on_wait_over,
}
"""Every phase but the final ones, whose deadline is infinite."""
