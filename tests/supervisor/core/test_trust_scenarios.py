# SPDX-License-Identifier: Apache-2.0
"""Observe, advise, act, and powers one by one: what is done, what is asked for and what is only told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as d
from supervisor.core.policy import Policy
from supervisor.core.values import Action, Checkpoint, Phase, Power, WaitFor
from tests.supervisor.core.journeys import (
    ADVISE,
    CRASH,
    OBSERVE,
    Journey,
    begun,
    training,
)
from tests.supervisor.core.scenarios import Scenario, check, title

AT_80 = Checkpoint(80, 1, 80)
MARGIN_20 = Policy(rollback_margin_steps=20)

SCENARIOS = (
    Scenario(
        "advice about a hang",
        lambda: training(ADVISE).hang(),
        Phase.TRAINING,
        (d.KeepEvidence(1, 1),),
        "`supervisor approve` does it",
    ),
    Scenario(
        "advice about a relaunch",
        lambda: training(ADVISE).commit(80).end().diagnose(),
        Phase.WAITING,
        (),
        "advice: relaunch as attempt 2 from step 80",
        WaitFor.PERSON,
    ),
    Scenario(
        "advice is repeated",
        lambda: training(ADVISE).commit(80).end().diagnose().deadline(),
        Phase.WAITING,
        (),
        "still waiting for a person: relaunch as attempt 2 from step 80",
        WaitFor.PERSON,
    ),
    Scenario(
        "observing tells of a hang, and keeps what shows its cause",
        lambda: training(OBSERVE).hang(),
        Phase.TRAINING,
        (d.KeepEvidence(1, 1),),
        "only watching",
    ),
    Scenario(
        "observing needs no stacks of a spike",
        lambda: training(OBSERVE).commit(80).spike(100),
        Phase.TRAINING,
        (),
        "only watching",
    ),
    Scenario(
        "observing does not relaunch",
        lambda: training(OBSERVE).commit(80).end().diagnose(),
        Phase.ABANDONED,
        (d.Release(),),
        "Only watching, so it is not relaunched",
    ),
    Scenario(
        "observing says it again while the run stands still",
        lambda: training(OBSERVE).hang().deadline(),
        Phase.TRAINING,
        (),
        "incident 1 still needs a person",
    ),
    Scenario(
        "observing says it again before the first step too",
        lambda: begun(OBSERVE).start().deadline().deadline(),
        Phase.LAUNCHING,
        (),
        "incident 1 still needs a person",
    ),
    Scenario(
        "an attached launch that dies is diagnosed and left",
        lambda: Journey().submit(attached=True).train().commit(80).end().diagnose(),
        Phase.ABANDONED,
        (d.Release(),),
        "Only watching",
    ),
    Scenario(
        "without the power to stop, stopping is asked for",
        lambda: training(Policy(powers=frozenset(Power) - {Power.STOP})).hang(),
        Phase.TRAINING,
        (d.KeepEvidence(1, 1),),
        "advice: stop attempt 1",
    ),
    Scenario(
        "without the power to relaunch, relaunching is asked for",
        lambda: training(Policy(powers=frozenset(Power) - {Power.RELAUNCH})).commit(80).crash(),
        Phase.WAITING,
        (),
        "advice: relaunch",
        WaitFor.PERSON,
    ),
    Scenario(
        "without the power to roll back, a spike is not even stopped",
        lambda: training(Policy(powers=frozenset(Power) - {Power.ROLLBACK})).commit(80).spike(100),
        Phase.TRAINING,
        (),
        "advice: stop attempt 1",
    ),
    Scenario(
        "without the power to roll back, a damaged checkpoint is asked about",
        lambda: (
            training(Policy(powers=frozenset(Power) - {Power.ROLLBACK}))
            .commit(50)
            .commit(80)
            .crash(replace(CRASH, action=Action.ROLLBACK))
        ),
        Phase.WAITING,
        (),
        "advice: relaunch as attempt 2 from step 50",
        WaitFor.PERSON,
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=title)
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
