# SPDX-License-Identifier: Apache-2.0
"""What a person, or whoever stops the supervisor's own process, may ask for. Each order counts as an intervention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from supervisor.core import events as e
from supervisor.core.answers import newest_launch, next_launch
from supervisor.core.decisions import Finish, Launch, Notify, Stop
from supervisor.core.failures import RUNNING, answer_open_failure, has_open_failure, stop_for
from supervisor.core.policy import Policy
from supervisor.core.spikes import merge
from supervisor.core.state import AfterStop, RunState
from supervisor.core.transitions import (
    Step,
    abandoned,
    launching,
    may_start_over,
    newest,
    note,
    stopping,
    urgent,
    waiting,
    what_counts_of,
)
from supervisor.core.values import BatchRange, Grant, OrderKind, Phase, WaitFor

ONLY_WATCHED = "the launch is only watched; start it with `supervisor run` to change it"
EXIT_CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}
"""128 + the signal's number, as a shell reports it."""


def on_stop_signalled(state: RunState, event: e.StopSignalled, policy: Policy) -> Step:
    code = EXIT_CODES.get(event.signal, 143)
    again = state.after_stop is not None and state.after_stop.what == "leave"
    if state.phase is Phase.STOPPING and again:
        stop = Stop(state.attempt, state.incident, 0.0, evidence=False)
        return stopping(state, event.at, policy, stop, note("told twice: stopping at once"), after=state.after_stop)
    grace_s = policy.finish_grace_s if event.grace_s is None else event.grace_s
    return _leave(state, event.at, policy, event.signal, code, grace_s)


def on_order_given(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    listed = what_counts_of(event.checkpoints, state, policy)
    known = state.checkpoints if listed is None else listed
    counted = replace(state, interventions=state.interventions + 1, checkpoints=known)
    entered, decisions = ORDERS[event.order](counted, event, policy)
    because = f": {event.why}" if event.why else ""
    return entered, (note(f"{event.who} ordered {event.order.value}{because}"), *decisions)


def _leave(state: RunState, at: float, policy: Policy, who: str, exit_code: int, grace_s: float) -> Step:
    if state.attached:
        text = f"no longer watched ({who}); the launch itself goes on"
        return abandoned(state, "ExternalStop", text, exit_code)
    after = AfterStop("leave", who, exit_code=exit_code)
    if state.phase in RUNNING:
        return _end_attempt(state, at, policy, grace_s, after, note(f"{who}: finish the step, save, and leave"))
    if state.phase is Phase.STOPPING:
        return replace(state, after_stop=after), (note(f"{who}: leaving once attempt {state.attempt} has ended"),)
    if state.waiting_for is WaitFor.ENDING:
        state = replace(state, is_left_alive=True)
    text = f"stopped by {who} while {state.phase.value.lower()}; `supervisor run` goes on from the newest checkpoint"
    return abandoned(state, "ExternalStop", text, exit_code)


def _end_attempt(
    state: RunState, at: float, policy: Policy, grace_s: float, after: AfterStop, *told: Notify, save: bool = True
) -> Step:
    """Before the first step there is nothing to save, and ranks that are still importing cannot hear a request."""
    if save and state.step is not None and state.failure is None:
        return stopping(state, at, policy, Finish(state.attempt, grace_s), *told, after=after)
    stop = Stop(state.attempt, state.incident, min(grace_s, policy.stop_grace_s), evidence=False)
    return stopping(state, at, policy, stop, *told, after=after)


def _stop(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    return _leave(state, event.at, policy, event.who, 130, policy.finish_grace_s)


def _pause(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    if state.attached:
        return _refuse(state, ONLY_WATCHED)
    if state.phase in RUNNING:
        after = AfterStop("pause", event.who)
        return _end_attempt(state, event.at, policy, policy.finish_grace_s, after)
    if state.waiting_for in (WaitFor.NODES, WaitFor.PERSON):
        return state, (note("it waits already; nothing is launched before `supervisor resume`"),)
    if state.waiting_for in (WaitFor.RETRY, WaitFor.SERVICE):
        return waiting(state, event.at + policy.person_s, WaitFor.PERSON, relaunch=state.relaunch)
    return _refuse(state, f"cannot pause while {state.phase.value}; try again when it trains or waits")


def _resume(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    if state.phase is not Phase.WAITING or state.waiting_for is WaitFor.ENDING:
        return _refuse(state, f"nothing to resume: the run is {state.phase.value}")
    assert state.relaunch is not None
    launch, back = state.relaunch, state
    if state.waiting_for is WaitFor.NODES:
        back = replace(state, excluded=())
    return launching(replace(back, past=(), tries_without_progress=0, rollbacks=0), event.at, policy, launch)


def _approve(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    proposal = state.proposal
    if proposal is None:
        return _refuse(state, "nothing waits for approval")
    if proposal.launch is not None:
        return launching(state, event.at, policy, proposal.launch)
    return stopping(state, event.at, policy, stop_for(state, policy))


def _roll_back(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    resume = newest(state.checkpoints, step=event.step)
    if resume is None:
        known = ", ".join(str(c.step) for c in state.checkpoints[-8:]) or "none"
        return _refuse(state, f"no committed checkpoint at or before step {event.step}; known steps: {known}")
    launch = replace(next_launch(state), resume=resume, from_nothing=False)
    return _relaunch_by_order(state, event, policy, launch, save=False)


def _skip(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    if event.first is None or event.last is None or not 0 <= event.first <= event.last:
        return _refuse(state, f"cannot skip batches {event.first}-{event.last}: expected 0 <= first <= last")
    skipped = merge((*state.skipped, BatchRange(event.first, event.last)))
    launch = replace(_planned_launch(state), skipped=skipped)
    ahead = state.position is not None and state.position < event.first
    if not ahead:
        resume = newest(state.checkpoints, position=event.first)
        if resume is None and not may_start_over(state, policy):
            known = ", ".join(str(c.step) for c in state.checkpoints[-8:])
            return _refuse(state, f"no checkpoint from before batch {event.first} is left; known steps: {known}")
        launch = replace(launch, resume=resume, from_nothing=resume is None)
    return _relaunch_by_order(state, event, policy, launch, save=ahead)


def _replace(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    if event.node is None or (state.nodes and event.node not in state.nodes):
        return _refuse(state, f"node {event.node} is not part of attempt {state.attempt}: {', '.join(state.nodes)}")
    if event.node in state.excluded:
        return _refuse(state, f"node {event.node} is left out already")
    excluded = (*state.excluded, event.node)
    if len(excluded) > policy.spare_nodes:
        return _refuse(state, f"cannot replace {event.node}: no spare node is left")
    launch = replace(_planned_launch(state), excluded=excluded)
    return _relaunch_by_order(state, event, policy, launch, save=True)


def _planned_launch(state: RunState) -> Launch:
    """A wait already knows what it launches, which may be a rollback that an order must not undo."""
    return newest_launch(state) if state.relaunch is None else state.relaunch


def _relaunch_by_order(state: RunState, event: e.OrderGiven, policy: Policy, launch: Launch, *, save: bool) -> Step:
    if state.attached:
        return _refuse(state, ONLY_WATCHED)
    ordered = replace(state, skipped=launch.skipped, excluded=launch.excluded)
    if state.phase in RUNNING:
        after = AfterStop("relaunch", event.who, launch)
        return _end_attempt(ordered, event.at, policy, policy.finish_grace_s, after, save=save)
    if state.waiting_for is WaitFor.NODES:
        held = replace(state, skipped=launch.skipped)
        told = note("noted for the next attempt; nodes are still missing: repair one, then `supervisor resume`")
        deadline = event.at + policy.person_s
        return waiting(held, deadline, WaitFor.NODES, told, relaunch=replace(launch, excluded=()))
    if state.phase is Phase.WAITING and state.waiting_for is not WaitFor.ENDING:
        return launching(ordered, event.at, policy, launch)
    return _refuse(state, f"cannot {event.order.value} while {state.phase.value}; try again when it trains or waits")


def _freeze(state: RunState, _event: e.OrderGiven, _policy: Policy) -> Step:
    return replace(state, frozen=True), (note("frozen: nothing is stopped, launched or isolated until `thaw`"),)


def _thaw(state: RunState, event: e.OrderGiven, policy: Policy) -> Step:
    """What was held back by the freeze alone is done now."""
    thawed = replace(state, frozen=False)
    proposal = state.proposal
    if proposal is not None and proposal.launch is not None and policy.grant(proposal.power) is Grant.ACT:
        return launching(thawed, event.at, policy, proposal.launch)
    if state.frozen and state.phase in RUNNING and has_open_failure(state):
        return answer_open_failure(thawed, event.at, policy, note("thawed", state.incident))
    return thawed, (note("thawed"),)


def _correct(state: RunState, event: e.OrderGiven, _policy: Policy) -> Step:
    return state, (note(f"incident {event.incident} is recorded as {event.reason}"),)


def _refuse(state: RunState, why: str) -> Step:
    return state, (urgent(f"refused: {why}"),)


ORDERS: dict[OrderKind, Callable[[RunState, e.OrderGiven, Policy], Step]] = {
    OrderKind.PAUSE: _pause,
    OrderKind.RESUME: _resume,
    OrderKind.STOP: _stop,
    OrderKind.APPROVE: _approve,
    OrderKind.ROLLBACK: _roll_back,
    OrderKind.SKIP: _skip,
    OrderKind.REPLACE: _replace,
    OrderKind.FREEZE: _freeze,
    OrderKind.THAW: _thaw,
    OrderKind.CORRECT: _correct,
}
