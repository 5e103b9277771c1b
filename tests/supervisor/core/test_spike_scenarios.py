# SPDX-License-Identifier: Apache-2.0
"""Loss spikes: replay first, leave batches out when it comes back, give up after some rollbacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as d
from supervisor.core.policy import Policy
from supervisor.core.values import Action, BatchRange, Checkpoint, FailureKind, OrderKind, Phase, WaitFor
from tests.supervisor.core.journeys import (
    CRASH,
    SPIKE,
    Journey,
    training,
)
from tests.supervisor.core.scenarios import Scenario, check, title

AT_80 = Checkpoint(80, 1, 80)
MARGIN_20 = Policy(rollback_margin_steps=20, skip_batches=50)


def spiked(policy: Policy = MARGIN_20) -> Journey:
    """Checkpoints of steps 50, 80 and 95; the loss jumps at step 100."""
    return training(policy).commit(50).commit(80).commit(95).spike(100)


def replayed(policy: Policy = MARGIN_20) -> Journey:
    return spiked(policy).end().diagnose(SPIKE)


def skipping() -> Journey:
    return replayed().train(99).spike(101).end().diagnose(SPIKE)


def spike_again(journey: Journey, times: int) -> Journey:
    """Each time at another place, so that each is a case of its own."""
    for i in range(times):
        journey.train(200 + 100 * i).spike(200 + 100 * i).end().diagnose(SPIKE)
    return journey


SCENARIOS = (
    Scenario("a loss spike stops the attempt", spiked, Phase.STOPPING, (d.Stop(1, 1, 5.0, False),), "at step 100"),
    Scenario(
        "a loss spike is replayed from a checkpoint older by the margin",
        replayed,
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
        "to tell data from chance",
    ),
    Scenario(
        "NaN is answered like a spike",
        lambda: training(MARGIN_20).commit(80).commit(95).spike(100, kind=FailureKind.NAN).end().diagnose(SPIKE),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "no checkpoint is old enough: the oldest before the spike",
        lambda: training(MARGIN_20).commit(90).commit(95).commit(100).spike(100).end().diagnose(SPIKE),
        Phase.LAUNCHING,
        (d.Launch(2, resume=Checkpoint(90, 1, 90)),),
    ),
    Scenario(
        "no checkpoint before the spike: from nothing",
        lambda: training(replace(MARGIN_20, rollback_margin_steps=100)).commit(100).spike(100).end().diagnose(SPIKE),
        Phase.LAUNCHING,
        (d.Launch(2, from_nothing=True),),
    ),
    Scenario(
        "no checkpoint before the spike of a run that has come far: a person decides",
        lambda: training(MARGIN_20).commit(100).spike(100).end().diagnose(SPIKE),
        Phase.ABANDONED,
        (d.Release(),),
        "starting anew is for a person to decide",
    ),
    Scenario(
        "a person may have it start from nothing",
        lambda: (
            training(replace(MARGIN_20, ask_when_exhausted=True))
            .commit(100)
            .spike(100)
            .end()
            .diagnose(SPIKE)
            .order(OrderKind.RESUME)
        ),
        Phase.LAUNCHING,
        (d.Launch(2, from_nothing=True),),
    ),
    Scenario(
        "the spike comes back at the same batches: the data's, so they are left out",
        skipping,
        Phase.LAUNCHING,
        (d.Launch(3, resume=AT_80, skipped=(BatchRange(101, 150),)),),
        "so it is the data's",
    ),
    Scenario(
        "the spike does not come back: chance",
        lambda: replayed().train(100).progress(126),
        Phase.TRAINING,
        (),
        "did not come back, so it was not the data's",
    ),
    Scenario(
        "a spike elsewhere is a new one and is replayed first",
        lambda: replayed().train(140).spike(140).end().diagnose(SPIKE),
        Phase.LAUNCHING,
        (d.Launch(3, resume=AT_80),),
        "to tell data from chance",
    ),
    Scenario(
        "policy leaves the batches out at once",
        lambda: spiked(replace(MARGIN_20, skip_first=True)).end().diagnose(SPIKE),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80, skipped=(BatchRange(100, 149),)),),
        "policy skips at once",
    ),
    Scenario(
        "the loss spikes again right behind the batches that were left out",
        lambda: skipping().train(104).spike(105, position=155).end().diagnose(SPIKE),
        Phase.LAUNCHING,
        (d.Launch(4, resume=AT_80, skipped=(BatchRange(101, 150), BatchRange(155, 204))),),
    ),
    Scenario(
        "the loss is clean behind them",
        lambda: skipping().train(104).progress(130, position=180),
        Phase.TRAINING,
        (),
        "the loss is clean behind the skipped batches 101-150",
    ),
    Scenario(
        "rollbacks are exhausted",
        lambda: spike_again(replayed(), 3),
        Phase.ABANDONED,
        (d.Release(),),
        "3 rollbacks did not help",
    ),
    Scenario(
        "rollbacks are exhausted and a person is asked",
        lambda: spike_again(replayed(replace(MARGIN_20, ask_when_exhausted=True)), 3),
        Phase.WAITING,
        (),
        "3 rollbacks did not help",
        WaitFor.PERSON,
    ),
    Scenario(
        "a damaged checkpoint: an older one",
        lambda: training().commit(50).commit(80).crash(replace(CRASH, action=Action.ROLLBACK)),
        Phase.LAUNCHING,
        (d.Launch(2, resume=Checkpoint(50, 1, 50)),),
        "going back to step 50",
    ),
    Scenario(
        "the only checkpoint is damaged: from nothing",
        lambda: training().commit(80).crash(replace(CRASH, action=Action.ROLLBACK)),
        Phase.LAUNCHING,
        (d.Launch(2, from_nothing=True),),
    ),
    Scenario(
        "going back without any checkpoint: from nothing",
        lambda: training().crash(replace(CRASH, action=Action.ROLLBACK)),
        Phase.LAUNCHING,
        (d.Launch(2, from_nothing=True),),
    ),
    Scenario(
        "a failure after a rollback resumes from before it",
        lambda: replayed().commit(95, position=95).start().crash(),
        Phase.WAITING,
        waits_for=WaitFor.RETRY,
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=title)
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
