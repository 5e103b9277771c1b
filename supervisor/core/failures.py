# SPDX-License-Identifier: Apache-2.0
"""The first sign of a failure: open an incident and stop what may still be alive. Why it failed is answered later."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import events as e
from supervisor.core.decisions import KeepEvidence, Launch, Notify, Stop
from supervisor.core.policy import Policy
from supervisor.core.state import Proposal, RunState
from supervisor.core.transitions import Step, diagnosing, note, stopping, unchanged, urgent, warning
from supervisor.core.values import Failure, FailureKind, Grant, Phase, Power

RUNNING = (Phase.LAUNCHING, Phase.TRAINING)
SPIKES = (FailureKind.SPIKE, FailureKind.NAN)


def on_rank_failed(state: RunState, event: e.RankFailed, policy: Policy) -> Step:
    ended = "ended without a readable exit code" if event.exit_code is None else f"exited with {event.exit_code}"
    detail = f"rank {event.rank} on {event.node} {ended}"
    return _open(state, event.at, policy, FailureKind.EXIT, event.since, detail, suspects=(event.node,))


def on_hang_found(state: RunState, event: e.HangFound, policy: Policy) -> Step:
    kind, named = FailureKind.HANG, event.suspects
    return _open(state, event.at, policy, kind, event.since, event.detail, suspects=named, rank=event.rank)


def on_loss_spiked(state: RunState, event: e.LossSpiked, policy: Policy) -> Step:
    positions = (event.onset_position, event.last_position)
    return _open(
        state, event.at, policy, event.kind, event.since, event.detail, step=event.onset_step, positions=positions
    )


def on_part_not_launched(state: RunState, event: e.LaunchFailed, policy: Policy) -> Step:
    """Another node has started the attempt already, so it has to be stopped."""
    return _open(state, event.at, policy, FailureKind.LAUNCH, event.at, event.message)


def on_no_first_step(state: RunState, at: float, policy: Policy) -> Step:
    if has_open_failure(state):
        return _remind(state, at, policy)
    started = not isinstance(state.pending, Launch)
    kind = FailureKind.HANG if started else FailureKind.LAUNCH
    detail = (
        f"no first step within {policy.startup_s:g} s" if started else "the nodes did not start the attempt in time"
    )
    return _open(state, at, policy, kind, state.deadline - policy.startup_s, detail)


def on_no_reports(state: RunState, at: float, policy: Policy) -> Step:
    if has_open_failure(state):
        return _remind(state, at, policy)
    detail = f"no agent has reported the attempt well for {policy.report_silence_s:g} s"
    return _open(state, at, policy, FailureKind.LOST, state.deadline - policy.report_silence_s, detail)


def has_open_failure(state: RunState) -> bool:
    """The newest attempt has failed; the failure of an older one is open until the first new step."""
    return state.failure is not None and state.failure.attempt == state.attempt


def _remind(state: RunState, at: float, policy: Policy) -> Step:
    assert state.failure is not None
    asked = "" if state.proposal is None else f"; `supervisor approve`: {state.proposal.text}"
    text = f"incident {state.incident} still needs a person: {state.failure.detail}{asked}"
    return replace(state, deadline=at + policy.person_s), (urgent(text, state.incident),)


def on_attempt_failed(state: RunState, event: e.AttemptEnded, policy: Policy) -> Step:
    """The launch ended by itself, so nothing has to be stopped."""
    opened = state
    told: tuple[Notify, ...] = ()
    if not has_open_failure(state):
        how = event.detail or f"the launcher exited with {event.exit_code}"
        opened, notice = _opened(state, event.at, FailureKind.EXIT, event.at, how)
        told = (notice,)
    return diagnosing(opened, event.at, policy, *told)


def _opened(
    state: RunState,
    at: float,
    kind: FailureKind,
    since: float,
    detail: str,
    suspects: tuple[str, ...] = (),
    rank: int | None = None,
    step: int | None = None,
    positions: tuple[int, int] | None = None,
) -> tuple[RunState, Notify]:
    incident = state.incident + 1
    onset, last = positions or (None, None)
    where = state.step if step is None else step
    trained = state.phase is Phase.TRAINING
    failure = Failure(
        incident, state.attempt, kind, since, at, where, detail, trained, suspects, onset, last, rank=rank
    )
    place = "before its first step" if not trained else "while training" if where is None else f"at step {where}"
    told = warning(f"incident {incident}: attempt {state.attempt} failed {place} ({kind.value}): {detail}", incident)
    return replace(state, incident=incident, failure=failure), told


def _open(
    state: RunState,
    at: float,
    policy: Policy,
    kind: FailureKind,
    since: float,
    detail: str,
    *,
    suspects: tuple[str, ...] = (),
    rank: int | None = None,
    step: int | None = None,
    positions: tuple[int, int] | None = None,
) -> Step:
    """Open an incident while the attempt may be alive; an attempt has one incident at most."""
    if state.phase not in RUNNING:
        return unchanged(state)
    if has_open_failure(state):
        return unchanged(state)
    opened, told = _opened(state, at, kind, since, detail, suspects, rank, step, positions)
    return answer_open_failure(opened, at, policy, told)


def answer_open_failure(state: RunState, at: float, policy: Policy, *told: Notify) -> Step:
    """Stop the failed attempt, ask whether to, or only tell."""
    failure = state.failure
    assert failure is not None
    power = Power.STOP
    grant = Grant.TELL if state.attached else policy.grant(power, frozen=state.frozen)
    if grant is Grant.ACT and failure.kind in SPIKES:
        power = Power.ROLLBACK
        grant = policy.grant(power)
    if grant is Grant.ACT:
        return stopping(state, at, policy, stop_for(state, policy), *told)
    waits = replace(state, deadline=at + policy.person_s)
    kept = (KeepEvidence(state.attempt, state.incident),) if is_silent(failure) else ()
    if grant is Grant.ASK:
        text = f"stop attempt {state.attempt} and find the cause"
        asked = urgent(f"advice: {text}; `supervisor approve` does it", state.incident)
        return replace(waits, proposal=Proposal(text, power=power)), (*told, asked, *kept)
    return waits, (*told, note("only watching: nothing is stopped", state.incident), *kept)


def stop_for(state: RunState, policy: Policy) -> Stop:
    evidence = state.failure is not None and is_silent(state.failure)
    return Stop(state.attempt, state.incident, policy.stop_grace_s, evidence)


def is_silent(failure: Failure) -> bool:
    """Stacks are worth their seconds where nothing in the logs can tell why: hangs and silence."""
    return failure.kind in (FailureKind.HANG, FailureKind.LOST)
