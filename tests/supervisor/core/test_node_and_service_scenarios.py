# SPDX-License-Identifier: Apache-2.0
"""Bad nodes are left out and services waited for: neither is the script's fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as d
from supervisor.core.policy import Policy
from supervisor.core.values import Category, Checkpoint, Phase, Power, WaitFor
from tests.supervisor.core.journeys import (
    BAD_GPU,
    NOT_NAMED,
    STORAGE_AWAY,
    SUSPECT,
    WANDB_AWAY,
    WITH_PROBE,
    training,
)
from tests.supervisor.core.scenarios import Scenario, check, title

AT_80 = Checkpoint(80, 1, 80)
SPARE = Policy(spare_nodes=1)

SCENARIOS = (
    Scenario(
        "storage away: wait for it",
        lambda: training().crash(STORAGE_AWAY),
        Phase.WAITING,
        (),
        "in 30 s",
        WaitFor.SERVICE,
    ),
    Scenario(
        "storage still away: wait longer, and it is not the same failure twice",
        lambda: (
            training().crash(STORAGE_AWAY).deadline().start().crash(STORAGE_AWAY).deadline().start().crash(STORAGE_AWAY)
        ),
        Phase.WAITING,
        (),
        "in 60 s",
        WaitFor.SERVICE,
    ),
    Scenario(
        "wandb away: go on at once without it",
        lambda: training().commit(80).crash(WANDB_AWAY),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80, environment=(("WANDB_MODE", "offline"),)),),
        "WANDB_MODE=offline",
    ),
    Scenario(
        "wandb away although it is off: wait",
        lambda: training().commit(80).crash(WANDB_AWAY).train(120).crash(WANDB_AWAY),
        Phase.WAITING,
        (),
        "wandb is away",
        WaitFor.SERVICE,
    ),
    Scenario(
        "a service without a switch: wait",
        lambda: training().commit(80).crash(replace(WANDB_AWAY, service="clearml")),
        Phase.WAITING,
        (),
        "clearml is away",
        WaitFor.SERVICE,
    ),
    Scenario(
        "a fatal node and a spare: cordon, and relaunch without it at once",
        lambda: training(SPARE).commit(80).crash(BAD_GPU),
        Phase.LAUNCHING,
        (
            d.Cordon("n1", "supervisor: ECCError run=gpt attempt=1 incident=1"),
            d.Launch(2, resume=AT_80, excluded=("n1",)),
        ),
        "left out from now on",
    ),
    Scenario(
        "a fatal node and no spare: wait for nodes",
        lambda: training().commit(80).crash(BAD_GPU),
        Phase.WAITING,
        (d.Cordon("n1", "supervisor: ECCError run=gpt attempt=1 incident=1"),),
        "no spare is left",
        WaitFor.NODES,
    ),
    Scenario(
        "the power to isolate is not granted: left out of this run only",
        lambda: training(replace(SPARE, powers=frozenset(Power) - {Power.ISOLATE})).commit(80).crash(BAD_GPU),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80, excluded=("n1",)),),
    ),
    Scenario(
        "a node that was left out already is no news",
        lambda: training(SPARE).commit(80).crash(BAD_GPU).train(85).crash(BAD_GPU),
        Phase.WAITING,
        waits_for=WaitFor.RETRY,
    ),
    Scenario(
        "a weak sign of a bad node: probe",
        lambda: training(WITH_PROBE).commit(80).crash(SUSPECT),
        Phase.PROBING,
        (d.Probe(1, 1, ("n1",)),),
    ),
    Scenario(
        "a hang that nothing explains: probe, the hang's suspects first",
        lambda: training(WITH_PROBE).hang("n2").end().diagnose(NOT_NAMED),
        Phase.PROBING,
        (d.Probe(1, 1, ("n2",)),),
    ),
    Scenario(
        "a weak sign but no probe: the same nodes again",
        lambda: training().commit(80).crash(SUSPECT),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "a framework failure needs no probe",
        lambda: training(WITH_PROBE).commit(80).crash(NOT_NAMED),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "storage away needs no probe",
        lambda: training(WITH_PROBE).crash(replace(STORAGE_AWAY, category=Category.INFRASTRUCTURE)),
        Phase.WAITING,
        waits_for=WaitFor.SERVICE,
    ),
    Scenario(
        "a service away needs no probe",
        lambda: training(WITH_PROBE).commit(80).crash(replace(WANDB_AWAY, category=Category.INFRASTRUCTURE)),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80, environment=(("WANDB_MODE", "offline"),)),),
    ),
    Scenario(
        "the probe finds it faulty",
        lambda: training(WITH_PROBE).commit(80).crash(SUSPECT).probe("n2"),
        Phase.LAUNCHING,
        (
            d.Cordon("n2", "supervisor: the node test found it faulty run=gpt attempt=1 incident=1"),
            d.Launch(2, resume=AT_80, excluded=("n2",)),
        ),
    ),
    Scenario(
        "the probe finds all healthy",
        lambda: training(WITH_PROBE).commit(80).crash(SUSPECT).probe(),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
        "found every node healthy",
    ),
    Scenario(
        "the probe does not answer in time",
        lambda: training(WITH_PROBE).commit(80).crash(SUSPECT).deadline(),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
        "decided nothing",
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=title)
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
