# SPDX-License-Identifier: Apache-2.0
"""ETTR, MTTR and the parts of an incident, from hand-made journals whose numbers are known, and for any story."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core import events as e
from supervisor.core.accounting import POINTS_REMEMBERED, Account, Curve, Ledger, account
from supervisor.core.policy import Policy
from supervisor.core.state import RunState
from supervisor.core.values import Category, Checkpoint, FailureKind, Mode, OrderKind
from tests.supervisor.core.journeys import CRASH, NOT_NAMED, SCRIPT_BUG, SUSPECT, WITH_PROBE, Journey, begun
from tests.supervisor.core.test_properties import NAMES, STORIES
from tests.supervisor.core.world import POLICIES, Move, World, moves, play


@dataclass(frozen=True)
class Line:
    event: e.Event | None = None
    policy: Policy | None = None


def told(journey: Journey, until: float | None = None) -> Account:
    lines = [Line(policy=journey.policy), *(Line(event) for event in journey.journal)]
    return account(lines, journey.at if until is None else until)


def steady(journey: Journey, first: int, last: int, step_s: float = 1.0) -> Journey:
    """A sample each step, `step_s` apart."""
    for step in range(first, last + 1):
        journey.feed(e.ProgressSampled(journey.later(step_s), journey.attempt, step, step))
    return journey


def test_undisturbed_run_keeps_all_but_its_start() -> None:
    journey = steady(begun().start().restore(), 1, 1001)
    numbers = told(journey)
    assert numbers.kept_s == 1000.0
    assert numbers.wall_s == 1004.0  # three seconds of start and one for the first step
    assert numbers.ettr == pytest.approx(1000 / 1004)
    assert (numbers.lost_s, numbers.recomputed_steps, numbers.mttr_s) == (0.0, 0, None)


def test_run_that_never_trained_has_no_ettr() -> None:
    assert told(begun().start()).ettr is None
    assert Ledger().account(5.0).ettr is None


def test_script_without_steps_has_no_ettr() -> None:
    assert told(begun().start().progress(None).progress(None)).ettr is None


def test_steps_trained_again_are_lost() -> None:
    journey = steady(begun().start().restore(), 1, 101).commit(51).crash()
    steady(journey.start().restore(51), 52, 61)
    numbers = told(journey)
    assert numbers.kept_s == pytest.approx(50.0 + 9.0)
    assert numbers.lost_s == pytest.approx(50.0)
    assert numbers.recomputed_steps == 50
    assert numbers.ettr == pytest.approx(59.0 / numbers.wall_s)


def test_time_of_a_step_between_two_samples_is_interpolated() -> None:
    journey = begun().start().restore().progress(1).progress(11).commit(6).crash()
    journey.start().restore(6).progress(7)
    assert told(journey).kept_s == pytest.approx(5.0)


def test_first_sample_tells_the_resume_step_of_a_script_that_does_not() -> None:
    journey = steady(begun().start(), 1, 101).crash().start()
    journey.feed(e.ProgressSampled(journey.later(), 2, 41, 41))
    numbers = told(journey)
    assert numbers.kept_s == pytest.approx(39.0) and numbers.recomputed_steps == 61


def test_run_that_starts_from_nothing_again_and_again_keeps_nothing() -> None:
    journey = steady(begun().start().restore(), 1, 101).crash(checkpoints=())
    journey.start().restore()
    numbers = told(journey)
    assert (numbers.kept_s, numbers.ettr) == (0.0, 0.0)
    assert numbers.lost_s == pytest.approx(100.0)


def test_abandoned_run_keeps_what_its_newest_checkpoint_holds() -> None:
    journey = steady(begun().start().restore(), 1, 101).commit(51).crash(SCRIPT_BUG)
    numbers = told(journey, until=journey.at + 5000.0)
    assert (numbers.kept_s, numbers.lost_s) == (50.0, 50.0)
    assert numbers.wall_s == journey.at - 1000.0  # the clock stops when the run ends


def test_abandoned_run_without_checkpoints_keeps_nothing_where_the_store_could_be_listed() -> None:
    listed = steady(begun().start().restore(), 1, 101).crash(SCRIPT_BUG, checkpoints=())
    unlisted = steady(begun().start().restore(), 1, 101).crash(SCRIPT_BUG)
    assert (told(listed).kept_s, told(unlisted).kept_s) == (0.0, 100.0)


def test_completed_run_keeps_its_last_steps_without_a_checkpoint() -> None:
    journey = steady(begun().start().restore(), 1, 101).commit(51).end(succeeded=True)
    assert told(journey, until=journey.at + 99.0).kept_s == 100.0


def test_time_between_an_ended_run_and_its_continuation_is_wall_time() -> None:
    journey = steady(begun().start().restore(), 1, 101).commit(101).order(OrderKind.STOP).end(succeeded=True)
    journey.later(1000.0)
    steady(journey.submit().start().restore(101), 102, 111)
    numbers = told(journey)
    assert numbers.wall_s > 1100.0 and numbers.kept_s == pytest.approx(109.0)
    assert numbers.interventions == 1


def test_queue_is_the_wait_and_the_time_until_nodes_start() -> None:
    journey = begun()
    journey.later(49.0)
    steady(journey.start().restore(), 1, 11).order(OrderKind.PAUSE).end()
    journey.later(100.0)
    paused = told(journey)
    assert paused.queue_s == pytest.approx(150.0)
    steady(journey.order(OrderKind.RESUME).start().restore(11), 12, 21)
    numbers = told(journey)
    assert numbers.queue_s == pytest.approx(152.0)
    assert numbers.ettr_without_queue is not None and numbers.ettr is not None
    assert numbers.ettr_without_queue == pytest.approx(numbers.kept_s / (numbers.wall_s - 152.0))
    assert numbers.ettr_without_queue > numbers.ettr


def test_wait_for_an_old_attempt_is_a_stop_and_not_queue() -> None:
    journey = steady(begun().start().restore(), 1, 11).rank_fails().deadline()
    before = told(journey).queue_s
    journey.later(500.0)
    assert told(journey).queue_s == before == 1.0


def test_incident_has_the_time_of_every_part() -> None:
    journey = steady(Journey(WITH_PROBE).submit().start().restore(), 1, 101).commit(101)
    failed = journey.at + 0.8
    journey.crash(SUSPECT).probe()
    steady(journey.start().restore(101), 102, 103)
    (incident,) = told(journey).incidents
    assert (incident.number, incident.kind, incident.attempt, incident.step) == (1, FailureKind.EXIT, 1, 101)
    assert (incident.reason, incident.category) == ("NCCLTimeout", Category.INFRASTRUCTURE)
    assert incident.since == pytest.approx(failed) and incident.closed_by == "new step"
    assert incident.parts() == pytest.approx(
        {
            "detect": 0.2,
            "stop": 1.0,
            "diagnose": 1.0,
            "probe": 1.0,
            "queue": 0.0,
            "start": 1.0,
            "import": 1.0,
            "restore": 1.0,
            "first step": 1.0,
        }
    )
    assert incident.recovery_s == pytest.approx(7.2) == told(journey).mttr_s
    assert incident.notes[0][1].startswith("incident 1: attempt 1 failed at step 101")


def test_wait_before_the_relaunch_is_the_incidents_queue() -> None:
    journey = steady(begun().start().restore(), 1, 101).commit(51).crash()
    steady(steady(journey.start().restore(51), 52, 60).crash(NOT_NAMED).deadline().start().restore(51), 52, 53)
    assert told(journey).incidents[1].parts()["queue"] == pytest.approx(5.0)


def test_part_whose_end_nobody_told_is_in_the_next() -> None:
    journey = steady(begun().start(), 1, 101).crash().start()
    journey.feed(e.ProgressSampled(journey.later(4.0), 2, 102, 102))
    (incident,) = told(journey).incidents
    assert "import" not in incident.parts() and incident.parts()["first step"] == pytest.approx(4.0)
    assert sum(incident.parts().values()) == pytest.approx(incident.recovery_s)


def test_failure_before_a_new_step_supersedes_and_both_are_closed_together() -> None:
    journey = steady(begun().start().restore(), 1, 101).commit(101).crash()
    journey.start().crash(NOT_NAMED).deadline().start().restore(101).progress(102)
    first, second = told(journey).incidents
    assert (first.closed_by, second.closed_by) == ("new step", "new step")
    assert first.first_step_at == second.first_step_at == journey.at
    assert first.superseded_at == second.since and second.superseded_at is None
    assert "again" in first.parts() and "first step" in second.parts()
    assert sum(first.parts().values()) == pytest.approx(first.recovery_s)


def test_withdrawn_suspicion_counts_in_no_recovery_time() -> None:
    journey = steady(Journey(Policy(mode=Mode.ADVISE)).submit().start().restore(), 1, 11).hang().progress(12)
    numbers = told(journey)
    assert [i.closed_by for i in numbers.incidents] == ["withdrawn"]
    assert (numbers.incidents[0].recovery_s, numbers.mttr_s, numbers.mttr_median_s) == (None, None, None)


def test_incident_that_ends_the_run_has_no_recovery() -> None:
    (incident,) = told(steady(begun().start(), 1, 11).crash(SCRIPT_BUG)).incidents
    assert (incident.closed_by, incident.recovery_s, incident.reason) == ("run ended", None, "KeyError")


def test_run_that_completes_while_a_suspect_is_stopped_ends_the_incident() -> None:
    (incident,) = told(steady(begun().start(), 1, 11).hang().end(succeeded=True)).incidents
    assert incident.closed_by == "run ended" and incident.stopped_at is not None


def test_second_launch_in_one_recovery_keeps_the_first_times() -> None:
    journey = steady(begun().start().restore(), 1, 11).commit(11).crash()
    launched = journey.at
    journey.start().order(OrderKind.PAUSE).end().order(OrderKind.RESUME).start().restore(11).progress(12)
    (incident,) = told(journey).incidents
    assert incident.launched_at == launched and incident.closed_by == "new step"


def test_mean_and_median_are_of_the_recovered() -> None:
    journey = steady(begun().start().restore(), 1, 11).commit(11)
    for step, late_s in ((12, 1.0), (13, 4.0), (14, 31.0)):
        journey.crash(CRASH).start()
        journey.feed(e.ProgressSampled(journey.later(late_s), journey.attempt, step, step)).commit(step)
    numbers = told(journey)
    assert numbers.mttr_median_s == pytest.approx(7.2)
    assert numbers.mttr_s == pytest.approx((4.2 + 7.2 + 34.2) / 3)


def test_clock_that_goes_back_stands_still() -> None:
    journey = steady(begun().start().restore(), 1, 11)
    journey.at -= 100.0
    steady(journey, 12, 121)
    numbers = told(journey, until=journey.at)
    assert numbers.kept_s == pytest.approx(20.0)


def test_interventions_are_the_persons_orders() -> None:
    journey = steady(begun().start(), 1, 11).order(OrderKind.FREEZE).order(OrderKind.THAW)
    assert told(journey).interventions == 2


@STORIES
@given(NAMES, moves())
def test_numbers_of_any_story_are_possible(name: str, story: list[Move]) -> None:
    world = World(POLICIES[name])
    ledger = Ledger()
    ledger.observe(None, world.journal[0], world.state, world.made)

    def watch(before: RunState, event: e.Event, world: World) -> None:
        ledger.observe(before, event, world.state, world.made)

    play(world, story, watch)
    until = max(event.at for event in world.journal)
    numbers = ledger.account(until)
    assert numbers.ettr is None or 0.0 <= numbers.ettr <= 1.0
    assert 0.0 <= numbers.kept_s + numbers.lost_s <= numbers.wall_s + 1e-6
    assert numbers.lost_s >= -1e-9 and numbers.recomputed_steps >= 0
    assert 0.0 <= numbers.queue_s <= numbers.wall_s + 1e-6
    assert [i.number for i in numbers.incidents] == list(range(1, world.state.incident + 1))
    for incident in numbers.incidents:
        assert all(seconds >= 0.0 for seconds in incident.parts().values())
        if incident.recovery_s is not None:
            assert sum(incident.parts().values()) == pytest.approx(incident.recovery_s)
    if world.state.is_final:
        assert all(i.closed_by is not None for i in numbers.incidents)
    assert account([Line(policy=world.policy), *(Line(event) for event in world.journal)], until) == numbers


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0.0, 100.0)), min_size=1, max_size=30), st.integers(-5, 500))
def test_what_is_kept_and_what_is_cut_is_the_whole(pieces: list[tuple[int, float]], cut: int) -> None:
    curve = Curve()
    step = 0
    for steps, seconds in pieces:
        step += steps
        curve.add(step, seconds)
    whole, until = curve.seconds, curve.until(cut)
    _, lost = curve.cut(cut)
    assert curve.seconds == pytest.approx(until)
    assert curve.seconds + lost == pytest.approx(whole)
    assert curve.step is None or curve.step <= max(cut, pieces[0][0])


def test_curve_of_a_long_run_stays_small_and_keeps_its_sum() -> None:
    curve = Curve()
    for step in range(3 * POINTS_REMEMBERED):
        curve.add(step, 1.0)
    assert curve.seconds == 3 * POINTS_REMEMBERED
    assert curve.until(1000) == pytest.approx(1001.0)
    assert curve.remembered <= POINTS_REMEMBERED


def test_step_that_is_no_further_adds_nothing() -> None:
    curve = Curve()
    curve.add(5, 1.0)
    curve.add(5, 1.0)
    assert (curve.step, curve.seconds) == (5, 1.0)


def test_newest_checkpoint_beyond_the_curve_keeps_everything() -> None:
    journey = steady(begun().start().restore(), 1, 11)
    journey.feed(e.CheckpointCommitted(journey.at, 1, Checkpoint(50, 1))).crash(SCRIPT_BUG)
    assert told(journey).kept_s == 10.0
