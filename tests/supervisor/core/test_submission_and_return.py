# SPDX-License-Identifier: Apache-2.0
"""The first event, an ended run that is taken up again, and a controller that comes back after an absence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.machine import advance
from supervisor.core.policy import Policy
from supervisor.core.values import Checkpoint, OrderKind, PastFailure, Phase, WaitFor
from tests.supervisor.core.journeys import BAD_GPU, CRASH, PLACES, SCRIPT_BUG, WANDB_AWAY, Journey, begun, training

SPARE = Policy(spare_nodes=1)


def test_journal_that_does_not_begin_with_a_submission_is_an_error() -> None:
    with pytest.raises(ValueError, match="RunSubmitted, not TimePassed"):
        advance(None, e.TimePassed(1.0), Policy())


def test_ended_run_continues_with_a_higher_attempt_and_its_skips_but_with_fresh_budgets() -> None:
    journey = training().commit(80).order(OrderKind.SKIP, first=101, last=110).end().train(130).crash(WANDB_AWAY)
    journey.train(140).order(OrderKind.FREEZE).order(OrderKind.STOP).end()
    ended = journey.state
    assert ended.phase is Phase.ABANDONED and ended.attempt == 3
    state = journey.submit(newest_attempt=2).state
    assert journey.asked() == (d.Launch(4, skipped=ended.skipped),)
    assert (state.past, state.tries_without_progress, state.rollbacks, state.spike) == ((), 0, 0, None)
    assert (state.environment, state.excluded, state.frozen, state.outcome, state.failure) == (
        (),
        (),
        False,
        None,
        None,
    )
    assert (state.submitted_at, state.incident) == (ended.submitted_at, ended.incident)
    assert (state.interventions, state.newest_step) == (ended.interventions, 140)


def test_ended_run_continues_above_what_the_store_knows() -> None:
    assert training().crash(SCRIPT_BUG).submit(newest_attempt=9).asked() == (d.Launch(10),)


def test_abandoned_run_may_use_a_node_again_that_it_left_out() -> None:
    journey = training(SPARE).commit(80).crash(BAD_GPU).train(120).crash(SCRIPT_BUG)
    assert journey.state.excluded == ("n1",)
    assert journey.submit().asked() == (d.Launch(3),)


def test_attempt_that_could_not_be_stopped_is_stopped_before_the_run_goes_on() -> None:
    journey = training().rank_fails().deadline().signal()
    assert journey.state.phase is Phase.ABANDONED and journey.state.is_left_alive
    journey.submit(newest_attempt=5)
    assert journey.asked() == (d.Stop(1, 1, 5.0, False),)
    assert journey.deadline().state.waiting_for is WaitFor.ENDING
    assert journey.end().asked() == (d.Launch(6),)
    assert not journey.state.is_left_alive


def test_attaching_does_not_stop_what_was_left_alive() -> None:
    journey = training().rank_fails().deadline().signal().submit(attached=True)
    assert journey.asked() == (d.Launch(2),)


@pytest.mark.parametrize("place", PLACES)
def test_returning_controller_asks_for_nothing_and_gives_every_phase_its_time_again(place: str) -> None:
    journey = PLACES[place]()
    before = journey.state
    at = journey.at + 3600.0
    journey.feed(e.ControllerReturned(at))
    assert journey.made == ()
    assert journey.state.phase is before.phase
    if before.phase not in (Phase.WAITING, Phase.SUCCEEDED, Phase.ABANDONED):
        assert journey.state.deadline > at


@pytest.mark.parametrize("away_s", [3600.0, 86_400.0])
def test_healthy_training_is_not_touched_after_an_absence(away_s: float) -> None:
    journey = training().commit(80)
    at = journey.later(away_s)
    journey.feed(e.ControllerReturned(at)).feed(e.TimePassed(at)).feed(e.TimePassed(at + 179.0)).progress(5000)
    assert journey.state.phase is Phase.TRAINING and journey.asked() == ()


def test_absence_does_not_shorten_a_stop_that_is_under_way() -> None:
    journey = training().signal()
    at = journey.later(600.0)
    journey.feed(e.ControllerReturned(at))
    assert journey.state.deadline >= at + 60.0


def test_retry_that_came_due_during_an_absence_is_launched() -> None:
    journey = begun().start().crash()
    at = journey.later(3600.0)
    assert journey.feed(e.ControllerReturned(at)).feed(e.TimePassed(at)).asked() == (d.Launch(2),)


def test_late_start_while_stopping_tells_the_nodes_and_keeps_the_stop() -> None:
    journey = begun().deadline().start("n3")
    assert journey.state.nodes == ("n3",) and journey.state.pending == d.Stop(1, 1, 5.0, False)


def test_cordon_is_asked_for_until_it_is_confirmed() -> None:
    journey = training(SPARE).commit(80).crash(BAD_GPU)
    assert [c.node for c in journey.state.uncordoned] == ["n1"]
    journey.feed(e.NodeCordoned(journey.at, "n2"))
    assert [c.node for c in journey.state.uncordoned] == ["n1"]
    journey.feed(e.NodeCordoned(journey.at, "n1"))
    assert journey.state.uncordoned == ()


def test_checkpoint_beyond_the_remembered_number_drops_the_oldest() -> None:
    journey = training()
    for step in range(1, 71):
        journey.commit(step)
    assert [c.step for c in journey.state.checkpoints] == list(range(7, 71))


def test_list_of_the_store_is_remembered_to_the_same_number() -> None:
    listed = tuple(Checkpoint(step, 1) for step in range(1, 71))
    journey = training().crash(checkpoints=listed)
    assert [c.step for c in journey.state.checkpoints] == list(range(7, 71))


def test_failures_are_remembered_as_far_as_the_budgets_count() -> None:
    journey = training()
    past = journey.rank_fails().end().state
    many = tuple(replace(_past(), at=float(i)) for i in range(300))
    after, _ = advance(replace(past, past=many), e.Diagnosed(5000.0, 1, CRASH), journey.policy)
    assert len(after.past) == 256
    wide = replace(journey.policy, budgets=tuple((c, replace(b, count=400)) for c, b in journey.policy.budgets))
    after, _ = advance(replace(past, past=many), e.Diagnosed(5000.0, 1, CRASH), wide)
    assert len(after.past) == 301


def test_sample_renews_the_deadline() -> None:
    journey = training()
    assert journey.state.deadline == journey.at + 180.0
    journey.progress(110)
    assert journey.state.deadline == journey.at + 180.0


@pytest.mark.parametrize("started", [True, False])
def test_launch_without_a_step_failed_since_it_was_ordered_however_late_it_is_noticed(started: bool) -> None:
    journey = begun().start() if started else begun()
    journey.feed(e.TimePassed(journey.later(5000.0)))
    assert journey.state.failure is not None
    assert (journey.state.failure.since, journey.state.failure.noticed_at) == (1000.0, journey.at)


def test_silence_began_with_the_last_sample() -> None:
    journey = training()
    last = journey.at
    journey.feed(e.TimePassed(journey.later(5000.0)))
    assert journey.state.failure is not None and journey.state.failure.since == last


def test_unhealthy_checkpoint_stays_so_over_a_rollback() -> None:
    journey = training().commit(80).commit(90).commit(95, healthy=False)
    journey.order(OrderKind.ROLLBACK, step=80).end().train(85)
    journey.feed(e.CheckpointCommitted(journey.at, 2, Checkpoint(95, 1, 95)))
    assert journey.crash().asked() == (d.Launch(3, resume=Checkpoint(80, 1, 80)),)


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        ((Checkpoint(85, 2), Checkpoint(90, 1)), Checkpoint(90, 1)),
        ((Checkpoint(90, 2), Checkpoint(90, 1)), Checkpoint(90, 2)),
    ],
)
def test_newest_checkpoint_has_the_largest_step_and_then_the_largest_attempt(
    listed: tuple[Checkpoint, ...], chosen: Checkpoint
) -> None:
    assert training().crash(checkpoints=listed).asked() == (d.Launch(2, resume=chosen),)


def test_older_sample_does_not_take_the_step_back() -> None:
    journey = training(step=100).progress(90)
    assert journey.state.step == 100


def test_sample_without_a_step_keeps_the_last_one() -> None:
    journey = training(step=100).feed(e.ProgressSampled(5000.0, 1, None))
    assert (journey.state.step, journey.state.position) == (100, 100)


def test_note_of_a_fallback_is_told_once() -> None:
    journey = begun().start().restore(50, "step 80 is damaged")
    assert "damaged" in journey.told() and journey.state.resume_step == 50
    assert journey.restore(50, "step 80 is damaged").told() == ""


def test_run_name_and_size_come_from_the_submission() -> None:
    state = Journey().submit(nodes=4).state
    assert (state.run, state.node_count, state.submitted_at, state.attached) == ("gpt", 4, 1000.0, False)


def _past() -> PastFailure:
    failure = training().crash().state.past
    return failure[0]


def test_restore_of_an_attempt_that_seemed_to_have_no_steps_is_taken_once() -> None:
    journey = Journey().submit().start().progress(None)
    assert journey.state.phase is Phase.TRAINING
    journey.restore(80, "an older one")
    assert (journey.state.resume_step, journey.state.restored, journey.told()) == (80, True, "an older one")
    assert journey.restore(80, "an older one").told() == ""
    journey.progress(81)
    assert journey.restore(60).state.resume_step == 80
