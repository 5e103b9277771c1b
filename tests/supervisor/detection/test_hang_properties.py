# SPDX-License-Identifier: Apache-2.0
"""What holds of the hang detector for any trace of polls."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.detection.api import (
    HangPolicy,
    HangState,
    HangVerdict,
    ProgressSample,
    RankProgress,
    learned_deadline,
    observe_progress,
    pause_deadline,
)

seconds = st.floats(0.0, 5000.0)
durations = st.lists(st.floats(1e-4, 1e4), max_size=12).map(tuple)
progress = st.builds(
    RankProgress,
    rank=st.integers(0, 3),
    node=st.just("n"),
    step=st.none() | st.integers(0, 50),
    idle_s=seconds,
    phase=st.none() | st.sampled_from(["startup", "compile", "checkpoint", "evaluation", "odd"]),
    phase_s=seconds,
    alive=st.booleans(),
    process_state=st.none() | st.sampled_from("RSDTZ"),
)
samples = st.builds(
    lambda gap, ranks, times: (gap, tuple({each.rank: each for each in ranks}.values()), times),
    st.floats(0.1, 40.0),
    st.lists(progress, max_size=4),
    durations,
)
traces = st.lists(samples, min_size=1, max_size=25)


def replayed(
    trace: list[tuple[float, tuple[RankProgress, ...], tuple[float, ...]]],
) -> list[tuple[HangState, ProgressSample, HangVerdict | None]]:
    at, state, seen = 0.0, HangState(policy=HangPolicy(cap_s=900.0)), []
    for gap, ranks, times in trace:
        at += gap
        sample = ProgressSample(at, ranks, times)
        state, verdict = observe_progress(state, sample)
        seen.append((state, sample, verdict))
    return seen


@settings(max_examples=60, deadline=None)
@given(traces)
def test_no_verdict_while_a_running_rank_is_inside_a_pause_within_its_deadline(
    trace: list[tuple[float, tuple[RankProgress, ...], tuple[float, ...]]],
) -> None:
    for state, sample, verdict in replayed(trace):
        excuses = [
            each
            for each in sample.ranks
            if each.alive
            and each.process_state not in ("T", "Z")
            and each.phase is not None
            and each.phase_s <= pause_deadline(state, each.phase)
        ]
        assert verdict is None or not excuses


@settings(max_examples=60, deadline=None)
@given(traces)
def test_deadline_stays_between_floor_and_cap_once_steps_are_done(
    trace: list[tuple[float, tuple[RankProgress, ...], tuple[float, ...]]],
) -> None:
    for state, _, _ in replayed(trace):
        if state.step is not None:
            assert state.policy.floor_s <= learned_deadline(state) <= state.policy.cap_s


@settings(max_examples=60, deadline=None)
@given(traces)
def test_verdict_has_waited_longer_than_its_deadline_and_names_listed_ranks(
    trace: list[tuple[float, tuple[RankProgress, ...], tuple[float, ...]]],
) -> None:
    for state, sample, verdict in replayed(trace):
        if verdict is not None:
            assert verdict.silent_s > verdict.deadline_s >= state.policy.floor_s
            assert verdict.culprits and set(verdict.culprits) <= {each.rank for each in sample.ranks}
            assert len(set(verdict.culprits)) == len(verdict.culprits)


@settings(max_examples=60, deadline=None)
@given(traces)
def test_replay_gives_equal_states_and_verdicts(
    trace: list[tuple[float, tuple[RankProgress, ...], tuple[float, ...]]],
) -> None:
    assert replayed(trace) == replayed(trace)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.0, 100.0), st.floats(0.0, 100.0), st.floats(0.01, 20.0))
def test_longer_silence_never_takes_a_verdict_back(idle_s: float, more_s: float, step_s: float) -> None:
    state = HangState()
    for poll in range(4):
        state, _ = observe_progress(
            state, ProgressSample(poll * 1.0, (RankProgress(0, "n", poll, 0.0),), (step_s,) * 8)
        )
    state, _ = observe_progress(state, ProgressSample(20.0, (RankProgress(0, "n", 3, 0.0),)))

    def is_hung(silence_s: float) -> bool:
        later = 20.0
        now = state
        verdict = None
        while later < 20.0 + silence_s:
            later += 5.0
            now, verdict = observe_progress(now, ProgressSample(later, (RankProgress(0, "n", 3, later - 20.0),)))
        return verdict is not None

    assert is_hung(idle_s + more_s) or not is_hung(idle_s)
