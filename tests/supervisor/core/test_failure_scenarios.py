# SPDX-License-Identifier: Apache-2.0
"""Exits, hangs, silence and launches that fail: what is stopped, looked into and launched again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.policy import Budget, Policy
from supervisor.core.values import Action, Category, Checkpoint, Phase, WaitFor
from tests.supervisor.core.journeys import (
    ADVISE,
    NO_MESSAGE,
    NOT_NAMED,
    SCRIPT_BUG,
    Journey,
    begun,
    training,
)
from tests.supervisor.core.scenarios import Scenario, check, title

AT_80 = Checkpoint(80, 1, 80)
ONE_A_DAY = Policy(budgets=tuple((c, Budget(1, 86_400.0)) for c in Category))


def launch_failed(*, permanent: bool) -> e.LaunchFailed:
    return e.LaunchFailed(1002.0, 1, "no such program: train.py", permanent)


def unhealthy(step: int) -> e.CheckpointCommitted:
    return e.CheckpointCommitted(1100.0, 2, Checkpoint(step, 1, step, healthy=False))


def a_day_later(journey: Journey) -> Journey:
    journey.later(86_400.0)
    return journey


SCENARIOS = (
    Scenario("the first launch", begun, Phase.LAUNCHING, (d.Launch(1),)),
    Scenario(
        "the store knows newer attempts than the journal",
        lambda: Journey().submit(newest_attempt=4),
        Phase.LAUNCHING,
        (d.Launch(5),),
    ),
    Scenario(
        "a rank dies", lambda: training().rank_fails(), Phase.STOPPING, (d.Stop(1, 1, 5.0, False),), "rank 1 on n1"
    ),
    Scenario("its processes have ended", lambda: training().rank_fails().end(), Phase.DIAGNOSING, (d.Diagnose(1, 1),)),
    Scenario(
        "a crash with a checkpoint: relaunch from it at once",
        lambda: training().commit(80).crash(),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
        "relaunch as attempt 2 from step 80",
    ),
    Scenario(
        "the store's list counts more than what was heard",
        lambda: training().commit(80).crash(checkpoints=(Checkpoint(60, 1), Checkpoint(90, 1))),
        Phase.LAUNCHING,
        (d.Launch(2, resume=Checkpoint(90, 1)),),
    ),
    Scenario(
        "the store is empty: from nothing",
        lambda: training().commit(80).crash(checkpoints=()),
        Phase.LAUNCHING,
        (d.Launch(2, from_nothing=True),),
        "from the beginning",
    ),
    Scenario(
        "the store of a run that has come far seems empty: its file system may be away, so what was heard counts",
        lambda: training(step=500).commit(480).crash(checkpoints=()),
        Phase.LAUNCHING,
        (d.Launch(2, resume=Checkpoint(480, 1, 480)),),
    ),
    Scenario(
        "only an unhealthy checkpoint is left of a run that has come far: a person decides",
        lambda: training(step=500).commit(480, healthy=False).crash(checkpoints=(Checkpoint(480, 1, 480),)),
        Phase.ABANDONED,
        (d.Release(),),
        "starting anew is for a person to decide",
    ),
    Scenario(
        "no checkpoint was heard of and none can be listed: whatever the store has",
        lambda: training().crash(),
        Phase.LAUNCHING,
        (d.Launch(2),),
        "the newest committed checkpoint",
    ),
    Scenario(
        "an unhealthy checkpoint is not resumed from, even when the list does not say so",
        lambda: (
            training()
            .commit(80)
            .commit(90)
            .commit(90, healthy=False)
            .commit(90)
            .crash(checkpoints=(AT_80, Checkpoint(90, 1)))
        ),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
    ),
    Scenario(
        "the store knows a newer attempt at the diagnosis",
        lambda: training().crash(newest_attempt=6),
        Phase.LAUNCHING,
        (d.Launch(7),),
    ),
    Scenario(
        "the launcher ends by itself with an error",
        lambda: training().end(exit_code=3),
        Phase.DIAGNOSING,
        (d.Diagnose(1, 1),),
        "the launcher exited with 3",
    ),
    Scenario("the script completes", lambda: training().end(succeeded=True), Phase.SUCCEEDED, (d.Release(),)),
    Scenario(
        "the script completes while it is being stopped for a hang",
        lambda: training().hang().end(succeeded=True),
        Phase.SUCCEEDED,
        (d.Release(),),
    ),
    Scenario(
        "a hang: stacks are kept before anything is killed",
        lambda: training().hang(),
        Phase.STOPPING,
        (d.Stop(1, 1, 5.0, True),),
    ),
    Scenario(
        "no agent reports any more",
        lambda: training().deadline(),
        Phase.STOPPING,
        (d.Stop(1, 1, 5.0, True),),
        "agents silent",
    ),
    Scenario(
        "no first step within the start-up time",
        lambda: begun().start().deadline(),
        Phase.STOPPING,
        (d.Stop(1, 1, 5.0, True),),
        "no first step within 600 s",
    ),
    Scenario(
        "the nodes never start the attempt",
        lambda: begun().deadline(),
        Phase.STOPPING,
        (d.Stop(1, 1, 5.0, False),),
        "launch failed",
    ),
    Scenario(
        "a launch that can never work",
        lambda: begun().feed(launch_failed(permanent=True)),
        Phase.ABANDONED,
        (d.Release(),),
        "no such program",
    ),
    Scenario(
        "a launch that may work later is left to the shell",
        lambda: begun().feed(launch_failed(permanent=False)),
        Phase.LAUNCHING,
    ),
    Scenario(
        "one node started, another cannot: the started one is stopped first",
        lambda: begun().start().feed(launch_failed(permanent=True)),
        Phase.STOPPING,
        (d.Stop(1, 1, 5.0, False),),
        "no such program",
    ),
    Scenario(
        "the user's bug is told, not retried",
        lambda: training().crash(SCRIPT_BUG),
        Phase.ABANDONED,
        (d.Release(),),
        "KeyError: 'lr' in train.py:7. What to do: set lr in the config",
    ),
    Scenario(
        "a script failure that asks for a restart has no budget",
        lambda: training().crash(replace(SCRIPT_BUG, action=Action.RESTART_SAME)),
        Phase.ABANDONED,
        (d.Release(),),
        "1 script failures within 1 h are more than the 0 allowed",
    ),
    Scenario(
        "an exit that nothing explains is tried once more after new steps",
        lambda: training().commit(80).crash(NO_MESSAGE),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
        "exit code 3 without a message. It had made new steps, so it is tried once more.",
    ),
    Scenario(
        "a second one soon after is the user's, whatever steps it made",
        lambda: training().commit(80).crash(NO_MESSAGE).train(200).crash(NO_MESSAGE),
        Phase.ABANDONED,
        (d.Release(),),
        "Unknown: exit code 3 without a message. What to do: print the error",
    ),
    Scenario(
        "one long after is tried again",
        lambda: (
            training(Policy(budgets=((Category.OTHER, Budget(6, 1.0)),))).crash(NO_MESSAGE).train(200).crash(NO_MESSAGE)
        ),
        Phase.LAUNCHING,
        (d.Launch(3),),
        "tried once more",
    ),
    Scenario(
        "an exit that nothing explains before the first step is not tried again",
        lambda: begun().crash(NO_MESSAGE),
        Phase.ABANDONED,
        (d.Release(),),
        "What to do: print the error",
    ),
    Scenario(
        "nor is one that made no new step",
        lambda: training().commit(80).crash().train(85).crash(NO_MESSAGE),
        Phase.ABANDONED,
        (d.Release(),),
        "What to do: print the error",
    ),
    Scenario(
        "no diagnosis in time: the same again",
        lambda: training().commit(80).rank_fails().end().deadline(),
        Phase.LAUNCHING,
        (d.Launch(2, resume=AT_80),),
        "Unknown",
    ),
    Scenario(
        "a second failure without progress waits",
        lambda: training().commit(80).crash().train(85).crash(NOT_NAMED),
        Phase.WAITING,
        (),
        "in 5 s",
        WaitFor.RETRY,
    ),
    Scenario(
        "the wait is over",
        lambda: training().commit(80).crash().train(85).crash(NOT_NAMED).deadline(),
        Phase.LAUNCHING,
        (d.Launch(3, resume=AT_80),),
    ),
    Scenario(
        "the checkpoint turns out to be unhealthy during the wait: the next older one",
        lambda: training().commit(70).commit(80).crash().train(85).crash(NOT_NAMED).feed(unhealthy(80)).deadline(),
        Phase.LAUNCHING,
        (d.Launch(3, resume=Checkpoint(70, 1, 70)),),
    ),
    Scenario(
        "every checkpoint turns out to be unhealthy: from nothing",
        lambda: training().commit(80).crash().train(85).crash(NOT_NAMED).feed(unhealthy(80)).deadline(),
        Phase.LAUNCHING,
        (d.Launch(3, from_nothing=True),),
    ),
    Scenario(
        "progress beyond the newest step makes the next relaunch immediate",
        lambda: training().commit(80).crash().train(101).crash(NOT_NAMED),
        Phase.LAUNCHING,
        (d.Launch(3, resume=AT_80),),
    ),
    Scenario(
        "the same failure at the same step twice",
        lambda: training().commit(80).crash().train(100).crash(),
        Phase.ABANDONED,
        (d.Release(),),
        "2 attempts in a row failed at step 100 with the same reason. Last cause: CUDAError",
    ),
    Scenario(
        "another reason at the same step goes on",
        lambda: training().commit(80).crash().train(100).crash(NOT_NAMED),
        Phase.WAITING,
        waits_for=WaitFor.RETRY,
    ),
    Scenario(
        "crashes before the first step do not loop",
        lambda: begun().start().crash().deadline().start().crash(NOT_NAMED),
        Phase.ABANDONED,
        (d.Release(),),
        "2 attempts in a row failed before their first step",
    ),
    Scenario(
        "one crash before the first step is tried again after a pause",
        lambda: begun().start().crash(),
        Phase.WAITING,
        waits_for=WaitFor.RETRY,
    ),
    Scenario(
        "a script without steps may fail twice while training",
        lambda: begun().start().progress(None).crash().deadline().start().progress(None).crash(),
        Phase.WAITING,
        waits_for=WaitFor.RETRY,
    ),
    Scenario(
        "the budget is used up",
        lambda: training(ONE_A_DAY).commit(80).crash().train(120).crash(),
        Phase.ABANDONED,
        (d.Release(),),
        "2 infrastructure failures within 24 h are more than the 1 allowed",
    ),
    Scenario(
        "other categories have their own budget",
        lambda: training(ONE_A_DAY).commit(80).crash().train(120).crash(NOT_NAMED),
        Phase.LAUNCHING,
        (d.Launch(3, resume=AT_80),),
    ),
    Scenario(
        "a failure that left the window does not count",
        lambda: a_day_later(training(ONE_A_DAY).commit(80).crash().train(120)).crash(),
        Phase.LAUNCHING,
        (d.Launch(3, resume=AT_80),),
    ),
    Scenario(
        "a used-up budget may ask a person instead",
        lambda: training(replace(ONE_A_DAY, ask_when_exhausted=True)).commit(80).crash().train(120).crash(),
        Phase.WAITING,
        (),
        "`supervisor resume` tries again",
        WaitFor.PERSON,
    ),
    Scenario(
        "a stop that is overdue waits for the old attempt to end, whatever it takes",
        lambda: training().rank_fails().deadline(),
        Phase.WAITING,
        (),
        "no new attempt is launched while it may be alive",
        WaitFor.ENDING,
    ),
    Scenario(
        "it is told again and again",
        lambda: training().rank_fails().deadline().deadline(),
        Phase.WAITING,
        (),
        "still waiting for the old attempt to end",
        WaitFor.ENDING,
    ),
    Scenario(
        "it ends at last",
        lambda: training().rank_fails().deadline().end(),
        Phase.DIAGNOSING,
        (d.Diagnose(1, 1),),
    ),
    Scenario(
        "ranks that do not leave when asked are killed",
        lambda: training().signal().deadline(),
        Phase.STOPPING,
        (d.Stop(1, 0, 0.0, False),),
        "did not leave in time",
    ),
    Scenario(
        "training goes on after all",
        lambda: training(ADVISE).hang().progress(101),
        Phase.TRAINING,
        (),
        "the suspicion of incident 1 is withdrawn",
    ),
    Scenario(
        "the first new step closes the incident",
        lambda: training().commit(80).crash().start().restore(80).progress(81),
        Phase.TRAINING,
        (),
        "attempt 2 trains again, step 81",
    ),
    Scenario(
        "a fallback at restore is told",
        lambda: begun().start().restore(50, "step 80 is damaged; step 50 is taken"),
        Phase.LAUNCHING,
        (),
        "step 80 is damaged",
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=title)
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
