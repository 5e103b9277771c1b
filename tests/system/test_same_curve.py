# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to a run, its final weights are bit for bit those of a run to which nothing happened."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from supervisor.core.api import BatchRange
from tests.system.supervised import BIN, DEADLINE_S, SCRIPTS, Supervised, torchrun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SCRIPT = SCRIPTS / "paced_gpt.py"
STEPS = 240
MODEL = (
    "--layers 1 --width 32 --heads 2 --context 32 --batch 4 --lr 3e-3 --warm-up 5 --evaluate-every 40 --save-every 20 "
    f"--steps {STEPS}"
).split()
POISON = (120, 139)
SPIKE = f"""
[policy]
rollback_margin_steps = 10
skip_batches = {POISON[1] - POISON[0] + 1}
"""


def train_alone(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Train to the end without a supervisor; the digest of the weights."""
    command = [str(BIN / "torchrun"), *torchrun(SCRIPT, *MODEL, "--digest", "digest", *arguments)[1:]]
    variables = {**os.environ, **(environment or {})}
    subprocess.run(command, cwd=folder, env=variables, check=True, timeout=DEADLINE_S, capture_output=True)
    return (folder / "digest").read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_alone(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def training(supervised: Supervised) -> tuple[str, ...]:
    """A command whose steps are slow enough to be hit."""
    supervised.environment["STEP_S"] = "0.02"
    return torchrun(SCRIPT, *MODEL, "--digest", "digest")


def digest(supervised: Supervised) -> str:
    return (supervised.work / "digest").read_text()


def test_weights_are_the_same_after_a_killed_rank_a_frozen_rank_and_a_killed_supervisor(
    supervised: Supervised, training: tuple[str, ...], undisturbed: str
) -> None:
    supervised.start(*training)
    supervised.wait_for_step(50)
    supervised.rank(1).send(signal.SIGKILL)
    supervised.wait_for_step(100, attempt=2)
    supervised.rank(0).send(signal.SIGSTOP)
    supervised.wait_for_step(150, attempt=3)
    supervised.kill()

    assert supervised.run(*training) == 0, supervised.output

    assert digest(supervised) == undisturbed
    assert [launch.attempt for launch in supervised.launches()] == [1, 2, 3]
    assert [incident["kind"] for incident in supervised.story["incidents"]] == ["exit", "hang"]


def test_weights_are_those_of_a_run_that_never_saw_the_batches_of_a_loss_spike(
    supervised: Supervised, training: tuple[str, ...], tmp_path: Path
) -> None:
    poison = ("--poison", f"{POISON[0]}-{POISON[1]}")
    supervised.configure(SPIKE)

    assert supervised.run(*training, *poison) == 0, supervised.output

    without = {"SUPERVISOR_SKIP": f"[[{POISON[0]}, {POISON[1]}]]"}
    assert digest(supervised) == train_alone(tmp_path, *poison, environment=without)
    replayed, skipping = supervised.launches()[1:]
    assert replayed.skipped == ()
    assert skipping.skipped == (BatchRange(*POISON),)
    assert "the spike came back at the same batches, so it is the data's" in supervised.output
