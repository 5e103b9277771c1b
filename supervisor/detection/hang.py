# SPDX-License-Identifier: Apache-2.0
"""Notices that a synchronous job has stopped without saying so.

The invariant: while any live rank is inside a known pause that is within its deadline, nobody is hung, since the others
wait for it in a collective; and time that nobody watched (a sleeping supervisor) never counts as silence.

Silence is measured by each rank's host and only shortened here, so a late or lost report cannot raise an alarm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from supervisor.detection import pauses, step_times
from supervisor.detection.progress import HangKind, HangPolicy, HangVerdict, ProgressSample, RankProgress

STARTUP_PHASE = "startup"
COMPILE_PHASE = "compile"

QUIET_FACTOR = 3.0
"""Medians after which a calm run's silence is to be noticed."""

NOTICE_LAG_S = 2.0
"""A report's age (up to 1 s) and the poll's period (1 s): they come on top of the deadline."""

STOP_CONFIRM_S = 2.0
"""A process must be seen stopped or gone for this long: debuggers and profilers stop a process for a moment."""

WAKE_UP_S = 15.0
"""A poll that comes this much later than the last, and out of its rhythm, is a supervisor that slept."""


@dataclass(frozen=True, slots=True)
class HangState:
    """All that the detector remembers of a run; begin with `HangState(policy)`."""

    policy: HangPolicy = field(default_factory=HangPolicy)
    times: step_times.StepTimes = field(default_factory=step_times.StepTimes)
    pauses: pauses.PauseTimes = field(default_factory=pauses.PauseTimes)
    at: float | None = None
    """Time of the last poll."""
    gap_s: float = 1.0
    """Time between the last two polls."""
    excused_at: float = 0.0
    """Last time at which silence was excused: a known pause, a wake-up, the attempt's first poll."""
    step: int | None = None
    stepped_at: float = 0.0
    """Poll at which the newest step was first seen."""
    stopped: tuple[tuple[int, float], ...] = ()
    """Ranks that are stopped or gone, and since which poll."""


def learned_deadline(state: HangState) -> float:
    """Seconds of silence, outside known pauses, after which the job hangs: from the policy's floor to its cap.

    Before the first step it is the policy's start-up deadline, which is not learned and not capped.
    """
    policy, times = state.policy, state.times
    if state.step is None:
        return policy.startup_s
    if times.is_warming:
        wanted = max(policy.warmup_s, step_times.WILD_FACTOR * times.median_s)
    else:
        wanted = max(QUIET_FACTOR * times.median_s - NOTICE_LAG_S, times.tail_factor * times.median_s)
    return min(max(wanted, policy.floor_s), policy.cap_s)


def pause_deadline(state: HangState, name: str) -> float:
    """Seconds that the known pause `name` may last."""
    policy = state.policy
    if name == STARTUP_PHASE:
        return policy.startup_s
    default_s = policy.pause_s_by_name.get(name, policy.pause_s)
    return pauses.deadline_s(state.pauses, name, default_s=default_s, cap_s=policy.cap_s)


def relaunched(state: HangState) -> HangState:
    """`state` for the run's next attempt: what was learned about times stays, what was seen of ranks goes."""
    return HangState(
        policy=state.policy,
        times=step_times.rewarmed(state.times),
        pauses=pauses.abandoned(state.pauses),
    )


def observe_progress(state: HangState, sample: ProgressSample) -> tuple[HangState, HangVerdict | None]:
    """The state after a poll, and the verdict when the job hangs."""
    live = [each for each in sample.ranks if not _is_gone(each)]
    state = _clocked(state, sample.at)
    state = replace(state, stopped=_stopped(state, sample))
    state = _stepped(state, sample.at, live)
    state = _timed(state, sample.durations, live)
    if _is_excused(state, live):
        return replace(state, excused_at=sample.at), None
    return state, _judged(state, sample, live)


def _timed(state: HangState, durations: tuple[float, ...], live: Iterable[RankProgress]) -> HangState:
    """`state` with the times of steps and pauses learned; steps beside a long pause may contain it and are left out."""
    inside: dict[str, float] = {}
    for each in live:
        if each.phase is not None:
            inside[each.phase] = max(inside.get(each.phase, 0.0), each.phase_s)
    before = dict(state.pauses.running)
    times = state.times
    if COMPILE_PHASE in before and COMPILE_PHASE not in inside:
        times = step_times.rewarmed(times)
    longest_s = max((*inside.values(), *before.values()), default=0.0)
    if longest_s <= max(state.policy.floor_s, 2.0 * times.median_s):
        times = step_times.learned(times, durations)
    return replace(state, times=times, pauses=pauses.watched(state.pauses, inside))


def _clocked(state: HangState, at: float) -> HangState:
    if state.at is None:
        return replace(state, at=at, excused_at=at, stepped_at=at)
    gap_s = at - state.at
    slept = gap_s > max(WAKE_UP_S, 4.0 * state.gap_s)
    return replace(state, at=at, gap_s=max(gap_s, 0.0), excused_at=at if slept else state.excused_at)


def _is_gone(rank: RankProgress) -> bool:
    return not rank.alive or rank.process_state == "Z"


def _stopped(state: HangState, sample: ProgressSample) -> tuple[tuple[int, float], ...]:
    known = dict(state.stopped)
    return tuple(
        (each.rank, known.get(each.rank, sample.at))
        for each in sample.ranks
        if _is_gone(each) or each.process_state == "T"
    )


def _confirmed(state: HangState, at: float) -> frozenset[int]:
    return frozenset(rank for rank, since in state.stopped if at - since >= STOP_CONFIRM_S)


def _stepped(state: HangState, at: float, live: Iterable[RankProgress]) -> HangState:
    newest = max((each.step for each in live if each.step is not None), default=None)
    if newest is None or (state.step is not None and newest <= state.step):
        return state
    return replace(state, step=newest, stepped_at=at)


def _is_excused(state: HangState, live: Iterable[RankProgress]) -> bool:
    """Whether a live rank is inside a known pause within its deadline; a process that is stopped does not pause."""
    stopped = _confirmed(state, state.at or 0.0)
    return any(
        each.phase is not None and each.rank not in stopped and each.phase_s <= pause_deadline(state, each.phase)
        for each in live
    )


def _judged(state: HangState, sample: ProgressSample, live: list[RankProgress]) -> HangVerdict | None:
    if not live:
        return None  # nothing is running, which is an exit and not a hang
    watched_s = sample.at - state.excused_at
    is_instrumented = state.step is not None or any(each.phase is not None for each in live)
    if not is_instrumented:
        silent_s = min(watched_s, *(each.idle_s for each in live))
        if silent_s <= state.policy.silence_s:
            return None
        why = f"no output for {silent_s:.0f} s; the job reports no steps, so its output is all there is to go by"
        return _verdict(state, sample, live, HangKind.ALL_SILENT, silent_s, state.policy.silence_s, why)
    reporting = [each for each in live if each.step is not None or each.phase is not None] or live
    return (
        _by_process_state(state, sample, reporting, watched_s)
        or _by_overdue_pause(state, sample, reporting, live)
        or _by_silence(state, sample, reporting, watched_s)
    )


def _by_process_state(
    state: HangState, sample: ProgressSample, reporting: list[RankProgress], watched_s: float
) -> HangVerdict | None:
    """A stopped or vanished process holds all others for ever, so only the floor is waited for."""
    stopped = _confirmed(state, sample.at)
    waiting = [each for each in reporting if each.rank not in stopped]
    if not stopped or not waiting:
        return None
    silent_s = min(watched_s, *(each.idle_s for each in waiting))
    floor_s = state.policy.floor_s
    if silent_s <= floor_s:
        return None
    named = _ranks_in_words(sorted(stopped))
    why = f"{named} stopped or gone while the others have waited for {silent_s:.1f} s"
    return _verdict(state, sample, reporting, HangKind.ALL_SILENT, silent_s, floor_s, why)


def _by_overdue_pause(
    state: HangState, sample: ProgressSample, reporting: list[RankProgress], live: list[RankProgress]
) -> HangVerdict | None:
    """A pause that outlasts its deadline while no step is done; beside steps it is a background matter."""
    overdue = [each for each in live if _is_overdue(state, each)]
    if not overdue or sample.at - state.stepped_at <= learned_deadline(state):
        return None
    longest = max(overdue, key=lambda each: each.phase_s)
    assert longest.phase is not None
    deadline_s = pause_deadline(state, longest.phase)
    kind = HangKind.ALL_SILENT if len(overdue) == len(reporting) else HangKind.SOME_SILENT
    why = f"{longest.phase} has lasted {longest.phase_s:.0f} s on rank {longest.rank}, allowed are {deadline_s:.0f} s"
    return _verdict(state, sample, reporting, kind, longest.phase_s, deadline_s, why)


def _by_silence(
    state: HangState, sample: ProgressSample, reporting: list[RankProgress], watched_s: float
) -> HangVerdict | None:
    deadline_s = learned_deadline(state)
    shortest_s = min(watched_s, *(each.idle_s for each in reporting))
    basis = f"{state.times.median_s:.3g} s is the median step" if state.step is not None else "before the first step"
    if shortest_s > deadline_s:
        why = f"no step and no sign of life for {shortest_s:.1f} s, allowed are {deadline_s:.1f} s ({basis})"
        return _verdict(state, sample, reporting, HangKind.ALL_SILENT, shortest_s, deadline_s, why)
    behind = [
        each
        for each in reporting
        if each.step is not None and state.step is not None and each.step < state.step and each.idle_s > deadline_s
    ]
    if behind and watched_s > deadline_s:
        silent_s = min(watched_s, max(each.idle_s for each in behind))
        named = _ranks_in_words([each.rank for each in behind])
        why = f"{named} behind and silent for {silent_s:.1f} s while others go on, allowed are {deadline_s:.1f} s"
        return _verdict(state, sample, reporting, HangKind.SOME_SILENT, silent_s, deadline_s, why)
    stepless_s = min(watched_s, sample.at - state.stepped_at)
    if stepless_s > state.policy.cap_s:
        why = f"signs of life, but no step for {stepless_s:.0f} s, allowed are {state.policy.cap_s:.0f} s"
        return _verdict(state, sample, reporting, HangKind.NO_STEP, stepless_s, state.policy.cap_s, why)
    return None


def _is_overdue(state: HangState, rank: RankProgress) -> bool:
    return rank.phase is not None and rank.phase_s > pause_deadline(state, rank.phase)


def _verdict(
    state: HangState,
    sample: ProgressSample,
    reporting: list[RankProgress],
    kind: HangKind,
    silent_s: float,
    deadline_s: float,
    why: str,
) -> HangVerdict:
    stopped = _confirmed(state, sample.at)
    shown = {each.rank for each in reporting}
    suspects = reporting + [each for each in sample.ranks if each.rank in stopped and each.rank not in shown]
    newest = state.step if state.step is not None else 0

    def suspicion(rank: RankProgress) -> tuple[bool, bool, int, bool]:
        behind = newest - rank.step if rank.step is not None else 0
        return rank.rank in stopped, _is_overdue(state, rank), behind, rank.process_state == "D"

    ranked = sorted(suspects, key=lambda each: (*suspicion(each), each.idle_s, -each.rank), reverse=True)
    is_clear = len({suspicion(each) for each in suspects}) > 1
    culprits = tuple(each.rank for each in ranked)
    return HangVerdict(state.step, silent_s, deadline_s, why, culprits, kind, is_clear)


def _ranks_in_words(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
