# SPDX-License-Identifier: Apache-2.0
"""The hang detector on planted traces of polls; each trace is a second a poll."""

from __future__ import annotations

import pytest

from supervisor.detection.api import (
    HangKind,
    HangPolicy,
    HangState,
    HangVerdict,
    ProgressSample,
    RankProgress,
    learned_deadline,
    observe_progress,
    pause_deadline,
    relaunched,
)


def ranks(
    step: int | None, idle_s: float, *, count: int = 4, **changed: RankProgress | None
) -> tuple[RankProgress, ...]:
    """`count` equal ranks; `r2=RankProgress(...)` puts another in place of rank 2."""
    equal = [RankProgress(rank, f"n{rank // 2}", step, idle_s) for rank in range(count)]
    return tuple(changed.get(f"r{each.rank}") or each for each in equal)


def trained(steps: int = 1200, step_s: float = 0.1, policy: HangPolicy | None = None) -> HangState:
    """A run that has done so many equal steps, polled once each ten."""
    state = HangState(policy=policy or HangPolicy())
    for poll in range(steps // 10):
        sample = ProgressSample(poll * 1.0, ranks(poll * 10 + 1, 0.05), (step_s,) * 10)
        state, verdict = observe_progress(state, sample)
        assert verdict is None
    return state


def polled(state: HangState, *seconds: tuple[RankProgress, ...]) -> tuple[HangState, list[HangVerdict]]:
    """The state after one poll a second, and the verdicts on the way."""
    verdicts = []
    for progress in seconds:
        state, verdict = observe_progress(state, ProgressSample((state.at or 0.0) + 1.0, progress))
        verdicts += [verdict] if verdict else []
    return state, verdicts


def test_silence_of_all_ranks_is_a_hang_after_the_floor_in_a_calm_fast_run() -> None:
    state, verdicts = polled(trained(), *(ranks(1191, idle) for idle in (1.0, 2.0, 2.9)))
    assert not verdicts
    _, verdicts = polled(state, ranks(1191, 3.5))
    assert [(each.kind, each.step, each.deadline_s) for each in verdicts] == [(HangKind.ALL_SILENT, 1191, 3.0)]
    assert not verdicts[0].is_clear


def test_verdict_is_repeated_for_as_long_as_the_hang_lasts() -> None:
    _, verdicts = polled(trained(), *(ranks(1191, float(idle)) for idle in range(1, 10)))
    assert [each.silent_s for each in verdicts] == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert {each.step for each in verdicts} == {1191}


@pytest.mark.parametrize(
    ("step_s", "deadline_s"), [(0.05, 3.0), (1.0, 3.0), (2.0, 4.0), (10.0, 28.0), (1000.0, 1800.0)]
)
def test_deadline_of_a_calm_run_follows_its_median_between_floor_and_cap(step_s: float, deadline_s: float) -> None:
    assert learned_deadline(trained(step_s=step_s)) == pytest.approx(deadline_s)


def test_young_run_is_given_more_time_than_a_calm_old_one() -> None:
    assert learned_deadline(trained(steps=500, step_s=2.0)) == pytest.approx(24.0)


def test_slow_step_that_the_run_has_shown_raises_its_deadline() -> None:
    state, _ = observe_progress(trained(step_s=1.0), ProgressSample(121.0, ranks(1200, 0.1), (30.0,)))
    assert learned_deadline(state) > 30.0


def test_stopped_rank_is_a_hang_after_the_floor_although_the_run_is_slow() -> None:
    stopped = RankProgress(2, "n1", 1191, 3.0, process_state="T")
    state, verdicts = polled(trained(step_s=60.0), *(ranks(1191, 4.0 + second, r2=stopped) for second in range(2)))
    assert not verdicts, "debuggers stop a process for a moment"
    _, verdicts = polled(state, ranks(1191, 8.0, r2=stopped))
    assert verdicts[0].culprits[0] == 2 and verdicts[0].is_clear
    assert verdicts[0].deadline_s == 3.0


@pytest.mark.parametrize(
    "gone", [RankProgress(1, "n0", 1190, 0.0, alive=False), RankProgress(1, "n0", 1190, 0.0, process_state="Z")]
)
def test_vanished_rank_is_a_hang_and_the_first_culprit(gone: RankProgress) -> None:
    _, verdicts = polled(trained(step_s=60.0), *(ranks(1191, 4.0 + second, r1=gone) for second in range(4)))
    assert verdicts[0].culprits[0] == 1 and "rank 1 stopped or gone" in verdicts[0].why


def test_stop_that_lasted_through_a_pause_is_judged_a_floor_after_its_end() -> None:
    stopped = RankProgress(2, "n1", 1191, 3.0, process_state="T")
    paused = RankProgress(0, "n0", 1191, 60.0, "checkpoint", 60.0)
    state, _ = polled(trained(), *(ranks(1191, 60.0, r0=paused, r2=stopped),) * 5)
    state, verdicts = polled(state, *(ranks(1191, 70.0, r2=stopped),) * 3)
    assert not verdicts
    assert polled(state, ranks(1191, 70.0, r2=stopped))[1]


def test_steps_beside_a_long_pause_are_not_learned() -> None:
    state = trained()
    paused = RankProgress(0, "n0", 1191, 0.1, "evaluation", 80.0)
    during, _ = observe_progress(state, ProgressSample(120.0, ranks(1191, 0.1, r0=paused), (80.0,)))
    after, _ = observe_progress(during, ProgressSample(121.0, ranks(1192, 0.1), (80.0,)))
    assert learned_deadline(after) == learned_deadline(state) == 3.0


def test_slow_first_steps_of_an_attempt_do_not_count_as_its_tail() -> None:
    state, _ = observe_progress(relaunched(trained()), ProgressSample(200.0, ranks(1, 0.1), (90.0, 9.0, 3.0)))
    state, _ = observe_progress(state, ProgressSample(201.0, ranks(11, 0.1), (0.1,) * 10))
    assert learned_deadline(state) == 3.0


def test_all_ranks_stopped_at_once_get_the_learned_deadline_since_nobody_waits_for_them() -> None:
    suspended = tuple(RankProgress(rank, "n0", 1191, 20.0, process_state="T") for rank in range(4))
    _, verdicts = polled(trained(step_s=60.0), *(suspended,) * 6)
    assert not verdicts


def test_stopped_rank_inside_a_pause_does_not_excuse_the_job() -> None:
    frozen = RankProgress(0, "n0", 1191, 9.0, "checkpoint", 9.0, process_state="T")
    _, verdicts = polled(trained(), *(ranks(1191, 9.0 + second, r0=frozen) for second in range(8)))
    assert verdicts and verdicts[0].culprits[0] == 0


def test_known_pause_of_one_rank_excuses_all_others() -> None:
    state = trained()
    for second in range(300):
        paused = RankProgress(0, "n0", 1191, second * 1.0, "evaluation", second * 1.0)
        state, verdicts = polled(state, ranks(1191, second * 1.0, r0=paused))
        assert not verdicts
    _, verdicts = polled(state, ranks(1191, 301.0, r0=RankProgress(0, "n0", 1191, 0.1)))
    assert not verdicts, "the others' long wait was excused"


def test_pause_that_outlasts_its_deadline_is_a_hang_of_the_rank_inside() -> None:
    state = trained(policy=HangPolicy(pause_s_by_name={"checkpoint": 60.0}))
    paused = [RankProgress(3, "n1", 1191, second * 1.0, "checkpoint", second * 1.0) for second in range(63)]
    state, verdicts = polled(state, *(ranks(1191, each.phase_s, r3=each) for each in paused))
    assert [each.culprits[0] for each in verdicts] == [3, 3]
    assert verdicts[0].deadline_s == 60.0 and verdicts[0].kind is HangKind.SOME_SILENT


def test_overdue_pause_beside_steps_is_a_background_matter() -> None:
    state = trained(policy=HangPolicy(pause_s_by_name={"checkpoint": 60.0}))
    for second in range(90):
        paused = RankProgress(3, "n1", 1191 + second, 0.2, "checkpoint", second * 1.0)
        state, verdicts = polled(state, ranks(1192 + second, 0.2, r3=paused))
        assert not verdicts


def test_deadline_of_a_pause_is_learned_from_three_earlier_ones() -> None:
    state = trained()
    assert pause_deadline(state, "checkpoint") == 1800.0
    for _ in range(3):
        inside = (ranks(1191, 0.1, r0=RankProgress(0, "n0", 1191, 1.0, "checkpoint", second)) for second in (4.0, 8.0))
        state, _ = polled(state, *inside, ranks(1191, 0.1))
    assert pause_deadline(state, "checkpoint") == 32.0


def test_many_ranks_in_one_pause_are_one_occurrence() -> None:
    inside = tuple(RankProgress(rank, "n0", 1191, 1.0, "checkpoint", 2.0) for rank in range(4))
    state, _ = polled(trained(), inside, ranks(1191, 0.1))
    assert pause_deadline(state, "checkpoint") == 1800.0


def test_start_up_has_its_own_deadline_which_the_cap_does_not_cut() -> None:
    state = HangState(policy=HangPolicy(cap_s=30.0))
    waiting = [
        tuple(RankProgress(rank, "n0", None, s * 1.0, "startup", s * 1.0) for rank in range(2)) for s in range(603)
    ]
    _, verdicts = polled(state, *waiting)
    assert len(verdicts) == 2 and verdicts[0].step is None and "startup" in verdicts[0].why


def test_first_steps_are_given_warm_up_time_again_after_a_compilation_and_a_relaunch() -> None:
    state = trained()
    compiling = ranks(1191, 1.0, r0=RankProgress(0, "n0", 1191, 1.0, "compile", 5.0))
    compiled, _ = polled(state, compiling, ranks(1191, 0.1))
    assert learned_deadline(compiled) == 120.0
    again, _ = polled(relaunched(state), ranks(1100, 0.1))
    assert learned_deadline(again) == 120.0
    for _ in range(2):
        again, _ = observe_progress(again, ProgressSample((again.at or 0.0) + 1.0, ranks(1110, 0.1), (0.1,) * 5))
    assert learned_deadline(again) == 3.0, "what was learned before the relaunch is kept"


def test_job_that_reports_nothing_hangs_only_by_the_silence_of_its_output() -> None:
    state = HangState(policy=HangPolicy(silence_s=100.0))
    for second in range(101):
        state, verdicts = polled(state, ranks(None, second * 1.0))
        assert not verdicts
    _, verdicts = polled(state, ranks(None, 101.0), ranks(None, 102.0))
    assert verdicts and "no output" in verdicts[0].why


def test_rank_that_falls_behind_in_silence_while_others_go_on_is_named() -> None:
    state = trained()
    verdicts: list[HangVerdict] = []
    for second in range(6):
        stuck = RankProgress(2, "n1", 1191, 1.0 + second)
        state, found = polled(state, ranks(1200 + second, 0.2, r2=stuck))
        verdicts += found
    assert verdicts[0].kind is HangKind.SOME_SILENT and verdicts[0].culprits[0] == 2


def test_signs_of_life_without_a_step_are_a_hang_at_the_cap() -> None:
    state = trained(policy=HangPolicy(cap_s=50.0))
    _, verdicts = polled(state, *(ranks(1191, 0.5) for _ in range(60)))
    assert verdicts and {each.kind for each in verdicts} == {HangKind.NO_STEP}


def test_lost_reports_raise_no_alarm() -> None:
    state, verdicts = polled(trained(), *((ranks(1191, 0.2),) * 600))
    assert not verdicts
    assert not polled(state, *(((),) * 100))[1], "and neither does a job of which nothing is heard"


def test_supervisor_that_slept_counts_silence_from_its_wake_up() -> None:
    state, verdict = observe_progress(trained(), ProgressSample(5000.0, ranks(1191, 4800.0)))
    assert verdict is None
    state, verdicts = polled(state, ranks(1191, 4801.0), ranks(1191, 4802.0), ranks(1191, 4803.0))
    assert not verdicts
    assert polled(state, ranks(1191, 4804.0))[1]


def test_slow_polling_still_finds_a_hang() -> None:
    state = trained()
    found = []
    for poll in range(1, 5):
        state, verdict = observe_progress(state, ProgressSample(120.0 + 20.0 * poll, ranks(1191, 20.0 * poll)))
        found.append(verdict is not None)
    assert found == [False, True, True, True]


def test_culprits_are_ordered_by_state_then_lag_then_disk_wait_then_idle_time() -> None:
    progress = (
        RankProgress(0, "n0", 1191, 5.0),
        RankProgress(1, "n0", 1191, 6.0),
        RankProgress(2, "n1", 1190, 5.0),
        RankProgress(3, "n1", 1191, 4.0, process_state="D"),
        RankProgress(4, "n2", 1191, 5.0, process_state="T"),
    )
    _, verdicts = polled(trained(), *(progress,) * 5)
    assert verdicts[-1].culprits == (4, 2, 3, 1, 0)


def test_floor_above_the_cap_is_refused_with_both_values() -> None:
    with pytest.raises(ValueError, match=r"floor_s=10.0 .* cap_s=5.0"):
        HangPolicy(floor_s=10.0, cap_s=5.0)
