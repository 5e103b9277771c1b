# SPDX-License-Identifier: Apache-2.0
"""How a launch is worded for the agents: what it is resumed from, and what the checkpoint library is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from checkpoint.api import CheckpointRef, Fence, open_catalogue
from schedulers.api import AllocationSpec
from supervisor.agent import api as agent
from supervisor.controller.disk import Disk
from supervisor.controller.effects import AttemptTemplate, RunEffects
from supervisor.controller.ending import Ending
from supervisor.controller.port import OrderQueues
from supervisor.controller.run_folder import RunFolder
from supervisor.core.api import FOREIGN, Checkpoint, Phase, Policy, RunState, decisions, events
from supervisor.core.values import CutOff
from tests.checkpoint.test_catalogue import commit
from tests.fakes import FakeScheduler
from tests.supervisor.controller.test_foreign import trainer

STATE = RunState("gpt", Phase.LAUNCHING, 2, deadline=1600.0 + Policy().startup_s, submitted_at=1000.0, incident=3)


class Launched:
    """The effects of a run whose script keeps Hugging Face checkpoints in `out`."""

    def __init__(self, root: Path, **template: object) -> None:
        words = {"resume_argument": ("--resume", "{checkpoint}", "--at={step}"), **template}
        self.folder = RunFolder(root / "run")
        self.folder.make()
        self.orders = OrderQueues()
        self.effects = RunEffects(
            folder=self.folder,
            scheduler=FakeScheduler(),
            allocation=AllocationSpec("gpt", 1, (sys.executable,), str(root), str(root)),
            orders=self.orders,
            template=AttemptTemplate(("train",), str(root), **words),  # type: ignore[arg-type]
            policy=Policy(),
            uri=str(root / "out"),
            ending=lambda: Ending((), None, None),
            disk=Disk(root),
        )

    def launch(self, launch: decisions.Launch, state: RunState = STATE) -> agent.LaunchSpec:
        self.effects.carry_out(launch, state)
        (order,) = [agent.decode_order(each["order"]) for each in self.orders.after("node-0", 0, 0.0)]
        assert isinstance(order, agent.StartAttempt)
        return order.spec


def test_a_relaunch_resumes_from_the_newest_whole_foreign_step(tmp_path: Path) -> None:
    for step in (10, 20):
        trainer(tmp_path / "out", step)
    (tmp_path / "out" / "checkpoint-30").mkdir()
    spec = Launched(tmp_path).launch(decisions.Launch(2))
    assert spec.command == ("train", "--resume", str(tmp_path / "out" / "checkpoint-20"), "--at=20")


def test_a_rollback_resumes_from_the_older_foreign_step_that_is_named(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        trainer(tmp_path / "out", step)
    spec = Launched(tmp_path).launch(decisions.Launch(2, Checkpoint(20, FOREIGN)))
    assert spec.command[-1] == "--at=20"


def test_what_a_rollback_has_cut_off_is_not_resumed_from_before_it_is_trained_again(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        trainer(tmp_path / "out", step)
    cut = replace(STATE, cut_off=CutOff(10, 35), newest_step=15)
    assert Launched(tmp_path).launch(decisions.Launch(3), cut).command[-1] == "--at=10"
    assert Launched(tmp_path).launch(decisions.Launch(3), replace(cut, newest_step=25)).command[-1] == "--at=20"


def test_the_first_attempt_and_one_from_nothing_get_no_resume_argument(tmp_path: Path) -> None:
    trainer(tmp_path / "out", 10)
    for launch in (decisions.Launch(1), decisions.Launch(2, from_nothing=True)):
        assert Launched(tmp_path).launch(launch).command == ("train",)


def test_a_script_that_keeps_its_own_checkpoints_finds_no_fence_among_them(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    launched = Launched(tmp_path)
    launched.launch(decisions.Launch(2))
    assert list((tmp_path / "out").iterdir()) == []
    assert open_catalogue(str(launched.folder.path)).newest_attempt() == 2


def test_the_checkpoint_library_is_told_of_failures_and_of_health_that_was_found_later(tmp_path: Path) -> None:
    catalogue = open_catalogue(str(tmp_path / "out"))
    for step in (1, 2, 3):
        commit(tmp_path / "out", step, healthy=True)
    catalogue.write_fence(Fence(1, unhealthy=(CheckpointRef(1, 1),)))
    state = replace(STATE, checkpoints=(Checkpoint(2, 1, healthy=False), Checkpoint(9, 1, healthy=False)))
    launched = Launched(tmp_path, resume_argument=())
    spec = launched.launch(decisions.Launch(2, Checkpoint(3, 1)), state)
    assert dict(spec.environment)["CHECKPOINT_FAILURES"] == "3:600"
    launched.effects.carry_out(decisions.Launch(2, Checkpoint(3, 1)), state)
    assert launched.launch(decisions.Launch(2, Checkpoint(3, 1)), state) == spec
    assert [(each.step, each.healthy) for each in catalogue.committed()] == [(1, False), (2, False), (3, True)]


def test_a_launch_from_a_checkpoint_that_was_pruned_with_all_older_ones_fails_for_good(tmp_path: Path) -> None:
    commit(tmp_path / "out", 40)
    effects = Launched(tmp_path, resume_argument=()).effects
    failed = effects.carry_out(decisions.Launch(2, Checkpoint(20, 1)), STATE)
    assert isinstance(failed, events.LaunchFailed) and failed.permanent
    assert "no checkpoint of step 20 or older" in failed.message and "steps 40" in failed.message
    assert effects.stored() == (Checkpoint(40, 1, None, None),)
