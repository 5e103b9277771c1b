# SPDX-License-Identifier: Apache-2.0
"""From a verdict to what comes next: relaunch, rollback, isolation, waiting, or giving the run back to a person."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import events as e
from supervisor.core.decisions import Cordon, Launch, Notify
from supervisor.core.failures import SPIKES
from supervisor.core.policy import Policy
from supervisor.core.spikes import remember_rollback, rollback_launch
from supervisor.core.state import FAILURES_REMEMBERED, Proposal, RunState
from supervisor.core.transitions import (
    Step,
    abandoned,
    describe_resume,
    launching,
    may_start_over,
    newest,
    note,
    probing,
    unchanged,
    urgent,
    waiting,
    warning,
    what_counts_of,
)
from supervisor.core.values import (
    UNKNOWN,
    Action,
    Category,
    Failure,
    FailureKind,
    Grant,
    Mode,
    PastFailure,
    Phase,
    Power,
    Verdict,
    WaitFor,
)

NOTHING_LEFT = "No healthy checkpoint from before the failure is left, and starting anew is for a person to decide."


def next_launch(state: RunState, *, newest_attempt: int = 0, listed: bool = False) -> Launch:
    """The attempt after this one, from the newest checkpoint not known to be unhealthy.

    `listed` says that `state.checkpoints` is all that the store holds, so that an empty list means from nothing.
    """
    resume = newest(state.checkpoints)
    return Launch(
        attempt=max(state.attempt, newest_attempt, state.relaunch.attempt - 1 if state.relaunch else 0) + 1,
        resume=resume,
        from_nothing=listed and resume is None,
        skipped=state.skipped,
        environment=state.environment,
        excluded=state.excluded,
    )


def newest_launch(state: RunState) -> Launch:
    """The attempt after one that is being let finish: the checkpoint that it saves last is not known yet."""
    return replace(next_launch(state), resume=None, from_nothing=False)


def on_diagnosed(state: RunState, event: e.Diagnosed, policy: Policy) -> Step:
    if state.phase is not Phase.DIAGNOSING:
        return unchanged(state)
    assert state.failure is not None
    verdict = event.verdict
    failure = replace(state.failure, verdict=verdict)
    past = PastFailure(event.at, verdict.reason, verdict.category, failure.step, state.attempt, failure.trained)
    listed = what_counts_of(event.checkpoints, state, policy)
    known = state.checkpoints if listed is None else listed
    remembered = max(FAILURES_REMEMBERED, sum(budget.count + 1 for _, budget in policy.budgets))
    progressed = state.step is not None and (state.newest_step is None or state.step > state.newest_step)
    judged = replace(
        state,
        failure=failure,
        checkpoints=known,
        past=(*state.past, past)[-remembered:],
        tries_without_progress=0 if progressed else state.tries_without_progress + 1,
        relaunch=next_launch(
            replace(state, checkpoints=known),
            newest_attempt=event.newest_attempt,
            listed=listed is not None,
        ),
    )
    return _answer(judged, event, policy)


def on_diagnosis_overdue(state: RunState, at: float, policy: Policy) -> Step:
    return on_diagnosed(state, e.Diagnosed(at, state.attempt, UNKNOWN), policy)


def _answer(state: RunState, event: e.Diagnosed, policy: Policy) -> Step:
    """First match wins: the user's to fix, hopeless, spike, bad node, service away, plain relaunch."""
    failure, verdict, launch = state.failure, event.verdict, state.relaunch
    assert failure is not None and launch is not None
    what = f"{verdict.reason} ({verdict.category.value}): {verdict.explanation}"
    if verdict.action is Action.FIX_USER and _deserves_a_try(state, policy):
        verdict = replace(verdict, action=Action.RESTART_SAME)
        what = f"{what} It had made new steps, so it is tried once more."
    told = warning(f"incident {state.incident} is {what}", state.incident)
    if verdict.action is Action.FIX_USER:
        text = f"{verdict.reason}: {_sentence(verdict.explanation)} What to do: {verdict.suggestion}"
        return abandoned(state, verdict.reason, text)
    if state.attached or (policy.mode is Mode.OBSERVE and not state.frozen):
        found = f"{verdict.reason}: {_sentence(verdict.explanation)}"
        text = f"{found} Only watching, so it is not relaunched: {verdict.suggestion}"
        return abandoned(state, verdict.reason, text)
    hopeless = _why_hopeless(state, policy)
    if hopeless is not None:
        return _give_up(state, event.at, policy, f"{hopeless} Last cause: {verdict.reason}: {verdict.explanation}")
    if _goes_back(failure, verdict):
        return _roll_back(state, event, policy)
    if launch.from_nothing and not may_start_over(state, policy):
        return _give_up(state, event.at, policy, NOTHING_LEFT)
    if verdict.fatal and verdict.suspects:
        return isolate(state, event.at, policy, verdict.suspects, verdict.reason)
    if policy.can_probe and _may_be_a_node(failure, verdict):
        return probing(state, event.at, policy, verdict.suspects or failure.suspects, told)
    if verdict.service is not None:
        return _without_service(state, event, policy, verdict.service)
    if verdict.action is Action.WAIT_AND_RETRY:
        wait_s = service_wait(state, policy, event.jitter)
        return relaunch(state, event.at, policy, launch, wait_s, told, waits_for=WaitFor.SERVICE)
    return relaunch(state, event.at, policy, launch, backoff(state, policy, event.jitter), told)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _deserves_a_try(state: RunState, policy: Policy) -> bool:
    """An error that nothing explains, after new steps, is tried once more; a second one within the window is not.

    Before its first step, or with no progress since the last failure, it is the user's: a restart cannot help.
    """
    now, *earlier = reversed(state.past)
    since = now.at - policy.budget(now.category).window_s
    repeated = any(past.reason == now.reason and past.at > since for past in earlier)
    progressed = now.step is not None and now.trained and state.tries_without_progress == 0
    return now.reason == UNKNOWN.reason and progressed and not repeated


def _may_be_a_node(failure: Failure, verdict: Verdict) -> bool:
    if verdict.action is Action.WAIT_AND_RETRY or verdict.service is not None:
        return False
    unexplained = failure.kind is FailureKind.HANG and verdict.reason in ("Unknown", "SilentHang")
    return unexplained or bool(verdict.suspects) or verdict.category is Category.INFRASTRUCTURE


def _goes_back(failure: Failure, verdict: Verdict) -> bool:
    return failure.kind in SPIKES or verdict.action is Action.ROLLBACK


def _why_hopeless(state: RunState, policy: Policy) -> str | None:
    last = state.past[-1]
    window = policy.budget(last.category)
    recent = [p for p in state.past if p.category is last.category and p.at > last.at - window.window_s]
    if len(recent) > window.count:
        hours = window.window_s / 3600
        return (
            f"{len(recent)} {last.category.value} failures within {hours:g} h are more than the {window.count} allowed."
        )
    assert state.failure is not None and state.failure.verdict is not None
    verdict = state.failure.verdict
    if state.failure.kind in SPIKES or verdict.action is Action.WAIT_AND_RETRY or verdict.service is not None:
        return None
    row = state.past[-policy.same_failure_limit :]
    if len(row) < policy.same_failure_limit:
        return None
    if not any(p.trained for p in row):
        return f"{len(row)} attempts in a row failed before their first step."
    if last.step is not None and all((p.reason, p.step) == (last.reason, last.step) for p in row):
        return f"{len(row)} attempts in a row failed at step {last.step} with the same reason."
    return None


def _give_up(state: RunState, at: float, policy: Policy, text: str) -> Step:
    failure = state.failure
    assert failure is not None and failure.verdict is not None
    if not policy.ask_when_exhausted:
        return abandoned(state, failure.verdict.reason, text)
    asked = urgent(f"{text} `supervisor resume` tries again, `supervisor stop` ends the run", state.incident)
    if _goes_back(failure, failure.verdict):
        launch, told = rollback_launch(state, policy)
        rolled = remember_rollback(state, policy, launch)
        return waiting(rolled, at + policy.person_s, WaitFor.PERSON, told, asked, relaunch=launch)
    return waiting(state, at + policy.person_s, WaitFor.PERSON, asked, relaunch=state.relaunch)


def backoff(state: RunState, policy: Policy, jitter: float) -> float:
    """Seconds before the relaunch: none after progress, else doubled for each try in a row that made none."""
    if state.tries_without_progress == 0:
        return 0.0
    return _doubled(policy.backoff_s, state, policy, jitter)


def service_wait(state: RunState, policy: Policy, jitter: float) -> float:
    """Seconds to wait for a service or a storage that is away, doubled for each try in a row without progress."""
    return _doubled(policy.service_wait_s, state, policy, jitter)


def _doubled(first_s: float, state: RunState, policy: Policy, jitter: float) -> float:
    exponent = min(30, max(0, state.tries_without_progress - 1))
    return float(min(policy.backoff_most_s, first_s * 2.0**exponent) * (1 + jitter / 2))


def relaunch(
    state: RunState,
    at: float,
    policy: Policy,
    launch: Launch,
    delay_s: float,
    *told: Notify,
    waits_for: WaitFor = WaitFor.RETRY,
    power: Power = Power.RELAUNCH,
) -> Step:
    grant = policy.grant(power, frozen=state.frozen)
    text = f"relaunch as attempt {launch.attempt} from {describe_resume(launch)}"
    if grant is not Grant.ACT:
        asked = urgent(f"advice: {text}; `supervisor approve` does it", state.incident)
        proposal = Proposal(text, launch, power)
        return waiting(state, at + policy.person_s, WaitFor.PERSON, *told, asked, relaunch=launch, proposal=proposal)
    if delay_s <= 0.0:
        return launching(state, at, policy, launch, *told, note(text, state.incident))
    waits = note(f"{text} in {delay_s:.0f} s", state.incident)
    return waiting(state, at + delay_s, waits_for, *told, waits, relaunch=launch)


def _without_service(state: RunState, event: e.Diagnosed, policy: Policy, service: str) -> Step:
    """An outside service is neither a bad node nor a script bug: go on at once without it, else wait for it."""
    assert state.relaunch is not None
    off = dict(policy.services_off).get(service)
    if off is None or all(pair in state.environment for pair in off):
        wait_s = service_wait(state, policy, event.jitter)
        told = warning(f"{service} is away; waiting for it", state.incident)
        return relaunch(state, event.at, policy, state.relaunch, wait_s, told, waits_for=WaitFor.SERVICE)
    environment = (*state.environment, *(pair for pair in off if pair not in state.environment))
    switched = replace(state, environment=environment)
    names = ", ".join(f"{key}={value}" for key, value in off)
    told = warning(f"{service} failed; the relaunch does without it ({names})", state.incident)
    return relaunch(switched, event.at, policy, replace(state.relaunch, environment=environment), 0.0, told)


def _roll_back(state: RunState, event: e.Diagnosed, policy: Policy) -> Step:
    if state.rollbacks >= policy.most_rollbacks:
        text = f"{state.rollbacks} rollbacks did not help; the loss or the checkpoints need a person."
        return _give_up(state, event.at, policy, text)
    launch, told = rollback_launch(state, policy)
    if launch.from_nothing and not may_start_over(state, policy):
        return _give_up(state, event.at, policy, NOTHING_LEFT)
    rolled = remember_rollback(state, policy, launch)
    return relaunch(rolled, event.at, policy, launch, 0.0, told, power=Power.ROLLBACK)


def on_probed(state: RunState, event: e.Probed, policy: Policy) -> Step:
    if state.phase is not Phase.PROBING:
        return unchanged(state)
    if event.faulty:
        return isolate(state, event.at, policy, event.faulty, "the node test found it faulty")
    assert state.relaunch is not None
    text = "the node test decided nothing" if event.undecided else "the node test found every node healthy"
    told = warning(f"{text}; the same nodes are tried again {event.detail}".rstrip(), state.incident)
    return relaunch(state, event.at, policy, state.relaunch, backoff(state, policy, 0.0), told)


def on_probe_overdue(state: RunState, at: float, policy: Policy) -> Step:
    return on_probed(state, e.Probed(at, state.attempt, (), state.nodes, "no answer in time"), policy)


def isolate(state: RunState, at: float, policy: Policy, nodes: tuple[str, ...], why: str) -> Step:
    """Leave `nodes` out of the next attempt and, where that is granted, out of everybody's."""
    assert state.relaunch is not None
    fresh = tuple(n for n in nodes if n not in state.excluded)
    excluded = (*state.excluded, *fresh)
    grant = policy.grant(Power.ISOLATE, frozen=state.frozen)
    reason = f"supervisor: {why} run={state.run} attempt={state.attempt} incident={state.incident}"
    cordons = tuple(Cordon(n, reason) for n in fresh) if grant is Grant.ACT else ()
    told = urgent(f"{', '.join(nodes)}: {why}; left out from now on", state.incident)
    delay_s = 0.0 if fresh else backoff(state, policy, 0.0)
    launch = replace(state.relaunch, excluded=excluded)
    held = replace(state, excluded=excluded, uncordoned=(*state.uncordoned, *cordons), relaunch=launch)
    if len(excluded) > policy.spare_nodes:
        text = f"{state.node_count} nodes are needed and no spare is left: repair one, then `supervisor resume`"
        deadline = at + policy.person_s
        entered, decisions = waiting(
            held, deadline, WaitFor.NODES, told, urgent(text, state.incident), relaunch=replace(launch, excluded=())
        )
    else:
        entered, decisions = relaunch(held, at, policy, launch, delay_s, told)
    return entered, (*cordons, *decisions)
