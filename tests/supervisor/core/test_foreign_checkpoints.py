# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the script keeps in its own way: no fence hides those from before a rollback, so the core does."""

from __future__ import annotations

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.policy import Policy
from supervisor.core.values import FOREIGN, Checkpoint, OrderKind, Phase
from tests.supervisor.core.journeys import SPIKE, Journey, training

MARGIN_20 = Policy(rollback_margin_steps=20)


def kept(*steps: int) -> tuple[Checkpoint, ...]:
    return tuple(Checkpoint(step, FOREIGN) for step in steps)


def launch(journey: Journey) -> d.Launch:
    (made,) = [each for each in journey.made if isinstance(each, d.Launch)]
    return made


def gone_back() -> Journey:
    """Checkpoints every 20 steps; the loss jumps at 100, is found at 110, and the run is back at 80."""
    journey = training(MARGIN_20).train(110).spike(100).end().diagnose(SPIKE, checkpoints=kept(40, 60, 80, 100))
    assert launch(journey).resume == Checkpoint(80, FOREIGN)
    return journey


def test_a_failure_is_answered_from_the_newest_step_that_the_script_has_left() -> None:
    journey = training().train(110).crash(checkpoints=kept(60, 80, 100))
    assert launch(journey).resume == Checkpoint(100, FOREIGN)


def test_after_a_rollback_the_steps_beyond_it_do_not_count_until_they_are_trained_again() -> None:
    journey = gone_back().train(95).crash(checkpoints=kept(40, 60, 80, 100))
    assert launch(journey).resume == Checkpoint(80, FOREIGN)
    journey.train(104).crash(checkpoints=kept(40, 60, 80, 100))
    assert launch(journey).resume == Checkpoint(100, FOREIGN)


def test_steps_that_no_one_had_reached_before_count_at_once() -> None:
    journey = gone_back().train(115).crash(checkpoints=kept(80, 100, 120))
    assert launch(journey).resume == Checkpoint(120, FOREIGN)


def test_a_checkpoint_from_before_a_rollback_that_is_announced_once_more_is_not_remembered() -> None:
    journey = gone_back().train(85)
    journey.feed(e.CheckpointCommitted(journey.later(), journey.attempt, Checkpoint(100, FOREIGN)))
    assert Checkpoint(100, FOREIGN) not in journey.state.checkpoints
    journey.feed(e.CheckpointCommitted(journey.later(), journey.attempt, Checkpoint(100, journey.attempt)))
    assert Checkpoint(100, journey.attempt) in journey.state.checkpoints


def test_a_person_goes_back_to_a_step_that_the_script_has_left() -> None:
    journey = training().train(110)
    for each in kept(60, 80, 100):
        journey.feed(e.CheckpointCommitted(journey.later(), journey.attempt, each))
    journey.order(OrderKind.ROLLBACK, step=90).end()
    assert journey.state.phase is Phase.LAUNCHING and launch(journey).resume == Checkpoint(80, FOREIGN)
    assert launch(journey.train(85).crash(checkpoints=kept(60, 80, 100))).resume == Checkpoint(80, FOREIGN)
