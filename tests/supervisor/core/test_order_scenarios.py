# SPDX-License-Identifier: Apache-2.0
"""A person's orders and the signals to the supervisor itself, as an operator would tell them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as d
from supervisor.core.policy import Policy
from supervisor.core.values import (
    BatchRange,
    Checkpoint,
    OrderKind,
    Phase,
    Power,
    WaitFor,
)
from tests.supervisor.core.journeys import (
    ADVISE,
    BAD_GPU,
    OBSERVE,
    SPIKE,
    STORAGE_AWAY,
    Journey,
    begun,
    training,
)
from tests.supervisor.core.scenarios import Scenario, check, title

SMALL_MARGIN = Policy(rollback_margin_steps=20)
AT_80 = Checkpoint(80, 1, 80)
AT_95 = Checkpoint(95, 1, 95)
FINISH = d.Finish(1, 60.0)
AT_ONCE = d.Stop(1, 0, 0.0, False)
BEFORE_FIRST_STEP = d.Stop(1, 0, 5.0, False)
SPARE = Policy(spare_nodes=1)
ROLLBACK_ASKED = Policy(powers=frozenset(Power) - {Power.ROLLBACK}, rollback_margin_steps=0)
PAUSE = OrderKind.PAUSE
RESUME = OrderKind.RESUME
STOP = OrderKind.STOP
APPROVE = OrderKind.APPROVE
ROLLBACK = OrderKind.ROLLBACK
SKIP = OrderKind.SKIP
REPLACE = OrderKind.REPLACE
FREEZE = OrderKind.FREEZE
THAW = OrderKind.THAW
CORRECT = OrderKind.CORRECT


def waits_for_rollback() -> Journey:
    """A spike at step 100 is to be replayed from step 80, and the power to roll back is not granted."""
    journey = training(ROLLBACK_ASKED).commit(80).commit(100).spike(100)
    return journey.order(APPROVE).end().diagnose(SPIKE)


SCENARIOS = (
    Scenario("pause while training: finish and save", lambda: training().order(PAUSE), Phase.STOPPING, (FINISH,)),
    Scenario(
        "pause before the first step: there is nothing to save",
        lambda: begun().order(PAUSE),
        Phase.STOPPING,
        (BEFORE_FIRST_STEP,),
    ),
    Scenario(
        "paused",
        lambda: training().commit(80).order(PAUSE).commit(100).end(succeeded=True),
        Phase.WAITING,
        (),
        "paused by ada at step 100; the newest committed checkpoint is of step 100",
        WaitFor.PERSON,
    ),
    Scenario(
        "paused without any checkpoint",
        lambda: training().order(PAUSE).end(),
        Phase.WAITING,
        (),
        "no checkpoint is committed",
        WaitFor.PERSON,
    ),
    Scenario(
        "a paused run reminds and does not start by itself",
        lambda: training().order(PAUSE).end().deadline(),
        Phase.WAITING,
        (),
        "still waiting for a person",
        WaitFor.PERSON,
    ),
    Scenario("resume", lambda: training().order(PAUSE).end().order(RESUME), Phase.LAUNCHING, (d.Launch(2),)),
    Scenario(
        "pause while waiting to try again",
        lambda: begun().start().crash().order(PAUSE),
        Phase.WAITING,
        waits_for=WaitFor.PERSON,
    ),
    Scenario(
        "resume keeps what was planned before the pause",
        lambda: training().commit(80).crash(STORAGE_AWAY).order(PAUSE).order(RESUME),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "pause while waiting for nodes keeps the wait",
        lambda: training().commit(80).crash(BAD_GPU).order(PAUSE),
        Phase.WAITING,
        (),
        "waits already",
        WaitFor.NODES,
    ),
    Scenario(
        "resume once a node is repaired: it may be used again",
        lambda: training().commit(80).crash(BAD_GPU).order(RESUME),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "resume does not wait for a retry",
        lambda: begun().start().crash().order(RESUME),
        Phase.LAUNCHING,
        (d.Launch(2),),
    ),
    Scenario(
        "stop: finish, save, leave",
        lambda: training().order(STOP),
        Phase.STOPPING,
        (FINISH,),
        "finish the step, save, and leave",
    ),
    Scenario(
        "stopped",
        lambda: training().commit(80).order(STOP).end(succeeded=True),
        Phase.ABANDONED,
        (d.Release(),),
        "stopped by ada at step 100; the newest committed checkpoint is of step 80",
    ),
    Scenario(
        "stop while nothing runs",
        lambda: training().rank_fails().end().order(STOP),
        Phase.ABANDONED,
        (d.Release(),),
        "stopped by ada while diagnosing",
    ),
    Scenario(
        "stop while the attempt is being stopped for a failure",
        lambda: training().rank_fails().order(STOP).end(),
        Phase.ABANDONED,
        (d.Release(),),
        "stopped by ada",
    ),
    Scenario(
        "approve the advice to stop a hung attempt: with its stacks",
        lambda: training(ADVISE).hang().order(APPROVE),
        Phase.STOPPING,
        (d.Stop(1, 1, 5.0, True),),
    ),
    Scenario(
        "approve the advice to relaunch",
        lambda: training(ADVISE).commit(80).end().diagnose().order(APPROVE),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "approve nothing", lambda: training().order(APPROVE), Phase.TRAINING, (), "refused: nothing waits for approval"
    ),
    Scenario(
        "roll back while training: nothing is saved",
        lambda: training().commit(80).commit(95).order(ROLLBACK, step=90),
        Phase.STOPPING,
        (BEFORE_FIRST_STEP,),
    ),
    Scenario(
        "rolled back",
        lambda: training().commit(80).commit(95).order(ROLLBACK, step=90).end(),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "a failure after the rollback does not bring back what was given up",
        lambda: training().commit(80).commit(95).order(ROLLBACK, step=90).end().train(85).crash(),
        Phase.LAUNCHING,
        (d.Launch(3, resume=AT_80),),
    ),
    Scenario(
        "roll back while waiting",
        lambda: training(ADVISE).commit(80).commit(95).end().diagnose().order(ROLLBACK, step=80),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "roll back to what retention has left",
        lambda: training().commit(60).commit(80).order(ROLLBACK, step=90, checkpoints=(AT_80, AT_95)).end(),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "roll back to what retention has pruned",
        lambda: training().commit(60).commit(80).order(ROLLBACK, step=70, checkpoints=(AT_80,)),
        Phase.TRAINING,
        (),
        "refused: no committed checkpoint at or before step 70; known steps: 80",
    ),
    Scenario(
        "skip while the store looks empty, as it does when it is not mounted",
        lambda: training(SMALL_MARGIN).commit(80).order(SKIP, first=85, last=90, checkpoints=()).end(),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80, skipped=(BatchRange(85, 90),)),),
    ),
    Scenario(
        "roll back to before everything",
        lambda: training().commit(80).order(ROLLBACK, step=79),
        Phase.TRAINING,
        (),
        "refused: no committed checkpoint at or before step 79; known steps: 80",
    ),
    Scenario(
        "roll back without checkpoints",
        lambda: training().order(ROLLBACK, step=79),
        Phase.TRAINING,
        (),
        "known steps: none",
    ),
    Scenario(
        "skip batches that lie ahead: save first, go on from there",
        lambda: training().commit(80).order(SKIP, first=101, last=120).end(),
        Phase.LAUNCHING,
        (d.Launch(2, skipped=(BatchRange(101, 120),)),),
    ),
    Scenario(
        "skip batches that lie ahead: the step is finished",
        lambda: training().order(SKIP, first=101, last=120),
        Phase.STOPPING,
        (FINISH,),
    ),
    Scenario(
        "skip batches that were trained: go back before them",
        lambda: training().commit(80).commit(95).order(SKIP, first=90, last=94).end(),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80, skipped=(BatchRange(90, 94),)),),
    ),
    Scenario(
        "skip batches that were trained: nothing is saved",
        lambda: training().commit(80).order(SKIP, first=100, last=100),
        Phase.STOPPING,
        (BEFORE_FIRST_STEP,),
    ),
    Scenario(
        "skip from the first batch: from nothing",
        lambda: training().commit(80).order(SKIP, first=0, last=9).end(),
        Phase.LAUNCHING,
        (d.Launch(2, from_nothing=True, skipped=(BatchRange(0, 9),)),),
    ),
    Scenario(
        "skip batches that lie before all checkpoints of a run that has come far",
        lambda: training(step=500).commit(480).order(SKIP, first=200, last=209),
        Phase.TRAINING,
        (),
        "refused: no checkpoint from before batch 200 is left; known steps: 480",
    ),
    Scenario(
        "skip while a rollback waits for approval does not undo it",
        lambda: waits_for_rollback().order(SKIP, first=200, last=210),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80, skipped=(BatchRange(200, 210),)),),
    ),
    Scenario(
        "skip while waiting for nodes is kept for later",
        lambda: training().commit(80).crash(BAD_GPU).order(SKIP, first=200, last=210).order(RESUME),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80, skipped=(BatchRange(200, 210),)),),
    ),
    Scenario(
        "replace a node",
        lambda: training(SPARE).order(REPLACE, node="n2").end(succeeded=True),
        Phase.LAUNCHING,
        (d.Launch(2, excluded=("n2",)),),
    ),
    Scenario(
        "replace a node: finish first",
        lambda: training(SPARE).order(REPLACE, node="n2"),
        Phase.STOPPING,
        (FINISH,),
    ),
    Scenario(
        "replace a node that takes no part",
        lambda: training(SPARE).order(REPLACE, node="n9"),
        Phase.TRAINING,
        (),
        "refused: node n9 is not part of attempt 1: n1, n2",
    ),
    Scenario("replace no node", lambda: training(SPARE).order(REPLACE), Phase.TRAINING, (), "refused"),
    Scenario(
        "replace without a spare",
        lambda: training().order(REPLACE, node="n2"),
        Phase.TRAINING,
        (),
        "no spare node is left",
    ),
    Scenario(
        "replace a node that is left out already",
        lambda: training(replace(SPARE, spare_nodes=2)).crash(BAD_GPU).order(REPLACE, node="n1"),
        Phase.LAUNCHING,
        (),
        "refused: node n1 is left out already",
    ),
    Scenario(
        "frozen: a hang is only told",
        lambda: training().order(FREEZE).hang(),
        Phase.TRAINING,
        (d.KeepEvidence(1, 1),),
        "only watching",
    ),
    Scenario(
        "frozen: nothing is relaunched or cordoned",
        lambda: training(SPARE).commit(80).order(FREEZE).end().diagnose(BAD_GPU),
        Phase.WAITING,
        (),
        "advice: relaunch as attempt 2 from step 80",
        WaitFor.PERSON,
    ),
    Scenario(
        "frozen while waiting to try again: it asks instead",
        lambda: begun().start().crash().order(FREEZE).deadline(),
        Phase.WAITING,
        (),
        "advice: relaunch as attempt 2",
        WaitFor.PERSON,
    ),
    Scenario(
        "thaw does what was held back: stop",
        lambda: training().order(FREEZE).hang().order(THAW),
        Phase.STOPPING,
        (d.Stop(1, 1, 5.0, True),),
    ),
    Scenario(
        "thaw does what was held back: relaunch",
        lambda: training().commit(80).order(FREEZE).end().diagnose().order(THAW),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "thaw grants no power",
        lambda: waits_for_rollback().order(FREEZE).order(THAW),
        Phase.WAITING,
        (),
        "thawed",
        WaitFor.PERSON,
    ),
    Scenario(
        "thaw in observe mode stops nothing",
        lambda: training(OBSERVE).order(FREEZE).hang().order(THAW),
        Phase.TRAINING,
        (d.KeepEvidence(1, 1),),
        "only watching",
    ),
    Scenario(
        "a frozen run is observed to its end and asks",
        lambda: training(OBSERVE).commit(80).order(FREEZE).end().diagnose(),
        Phase.WAITING,
        (),
        "advice: relaunch",
        WaitFor.PERSON,
    ),
    Scenario(
        "correct a diagnosis",
        lambda: training().crash().order(CORRECT, incident=1, reason="ECCError"),
        Phase.LAUNCHING,
        (),
        "incident 1 is recorded as ECCError",
    ),
    Scenario(
        "an order is told with its reason",
        lambda: training().order(FREEZE, why="maintenance"),
        Phase.TRAINING,
        (),
        "ada ordered freeze: maintenance",
    ),
    Scenario("SIGTERM: finish, save, leave", lambda: training().signal(), Phase.STOPPING, (FINISH,)),
    Scenario(
        "SIGTERM with the scheduler's grace",
        lambda: training().signal(grace_s=20.0),
        Phase.STOPPING,
        (d.Finish(1, 20.0),),
    ),
    Scenario("a second signal stops at once", lambda: training().signal().signal(), Phase.STOPPING, (AT_ONCE,)),
    Scenario(
        "a signal during a pause leaves",
        lambda: training().order(PAUSE).signal().end(succeeded=True),
        Phase.ABANDONED,
        (d.Release(),),
        "stopped by SIGTERM",
    ),
    Scenario(
        "a signal after a failure was noticed: stop, do not save",
        lambda: training(ADVISE).hang().signal(),
        Phase.STOPPING,
        (d.Stop(1, 1, 5.0, False),),
    ),
    Scenario(
        "a signal with less grace than a stop takes",
        lambda: begun().signal(grace_s=2.0),
        Phase.STOPPING,
        (d.Stop(1, 0, 2.0, False),),
    ),
    Scenario(
        "detach",
        lambda: Journey().submit(attached=True).train().signal("SIGINT"),
        Phase.ABANDONED,
        (d.Release(),),
        "the launch itself goes on",
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=title)
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
