# SPDX-License-Identifier: Apache-2.0
"""A standby stands in only for a command that it equals in everything an interpreter reads when it starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.agent import torchrun_command, warm
from supervisor.agent.api import LaunchSpec
from supervisor.agent.standby import ForkedRank, fork_spares
from supervisor.agent.warm import Plan, Standby, WarmError

SCRIPT = "import os\nimport torch.nn as nn\nfrom checkpoint import Checkpointer\nimport wandb\nfrom . import x\n"


@pytest.fixture
def spec(tmp_path: Path) -> LaunchSpec:
    (tmp_path / "torchrun").write_text(f"#!{sys.executable}\nimport sys\n")
    (tmp_path / "torchrun").chmod(0o755)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = (str(tmp_path / "torchrun"), "--nproc-per-node", "2", "train.py")
    return LaunchSpec(command, str(tmp_path), (), str(tmp_path / "attempt-1"), warm="ranks")


def planned(spec: LaunchSpec, **environment: str) -> tuple[Plan, str]:
    return warm.plan(spec, torchrun_command.parse(spec.command), {"PATH": os.defpath, **environment})


def test_ranks_are_forked_with_what_the_script_imports_and_torchruns_thread_count(spec: LaunchSpec) -> None:
    plan, note = planned(spec)
    assert (plan.mode, plan.ranks, plan.interpreter, note) == ("ranks", 2, (sys.executable,), "")
    assert plan.modules[2:] == ("torch.nn", "checkpoint:Checkpointer", "torch._dynamo")
    assert plan.script_folder == spec.working_folder
    assert ("OMP_NUM_THREADS", "1") in plan.loaded_with
    assert ("OMP_NUM_THREADS", "4") in planned(spec, OMP_NUM_THREADS="4")[0].loaded_with


def test_a_standby_launcher_leaves_the_threads_to_torchrun(spec: LaunchSpec) -> None:
    plan, note = planned(replace(spec, warm="launcher"))
    assert (plan.mode, plan.ranks, plan.script_folder, note) == ("launcher", 0, "", "")
    assert plan.modules == ("torch", "torch.distributed.run") and plan.loaded_with == ()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--nproc-per-node gpu train.py", "--nproc-per-node as a number"),
        ("-m package.train", "the command uses -m"),
        ("--no-python ./train.sh", "the command uses --no-python"),
        ("train", "name ends in .py"),
    ],
)
def test_what_cannot_be_forked_gets_a_standby_launcher_and_a_note(spec: LaunchSpec, arguments: str, why: str) -> None:
    plan, note = planned(replace(spec, command=(spec.command[0], *arguments.split())))
    assert plan.mode == "launcher" and why in note


@pytest.mark.parametrize(
    "statement",
    [
        "os.environ['OMP_NUM_THREADS'] = '4'",
        "os.environ.setdefault('TORCH_LOGS', 'all')",
        "from os import environ; environ.update(A='1')",
        "if True:\n    del os.environ['A']",
        "os.putenv('A', '1')",
    ],
)
def test_ranks_of_a_script_that_prepares_its_environment_are_not_forked(spec: LaunchSpec, statement: str) -> None:
    script = Path(spec.working_folder, "train.py")
    script.write_text(f"import os\n{statement}\nimport my_training\n")
    assert planned(spec)[0].mode == "launcher"
    script.write_text(f"import os\n{statement}\nimport torch\n")
    plan, note = planned(spec)
    assert plan.mode == "launcher" and "train.py sets environment variables before its imports" in note


@pytest.mark.parametrize(
    "source",
    [
        "import os\nimport torch\nos.environ['A'] = '1'\n",
        "import os\nrank = os.environ['RANK']\nother = os.environ.get('A')\nimport torch\n",
        "import os\ndef later():\n    os.environ['A'] = '1'\nimport torch\n",
        "names = {}\nnames.update(a=1)\nimport torch\n",
    ],
)
def test_a_script_may_read_its_environment_and_change_it_behind_its_imports(spec: LaunchSpec, source: str) -> None:
    Path(spec.working_folder, "train.py").write_text(source)
    assert planned(spec)[0].mode == "ranks"


def test_only_a_change_of_what_is_read_at_load_makes_another_plan(spec: LaunchSpec) -> None:
    first = planned(spec, CHECKPOINT_RESUME="5", TORCH_FR_DUMP_TEMP_FILE="/a1", PYTHONPATH="/x")[0]
    assert planned(spec, CHECKPOINT_RESUME="6", TORCH_FR_DUMP_TEMP_FILE="/a2", PYTHONPATH="/x")[0] == first
    assert planned(spec, PYTHONPATH="/y")[0] != first
    assert planned(replace(spec, working_folder="/"), PYTHONPATH="/x")[0] != first


def test_a_command_that_is_not_torchrun_has_no_standby(spec: LaunchSpec) -> None:
    with pytest.raises(WarmError, match="not torchrun"):
        planned(replace(spec, command=("python", "train.py")))
    with pytest.raises(WarmError, match="'hot' is no mode"):
        planned(replace(spec, warm="hot"))
    with pytest.raises(WarmError, match="no program 'torchrun' on the PATH"):
        warm.plan(spec, torchrun_command.parse(("torchrun", "train.py")), {"PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("head", "interpreter"),
    [
        ("#!/opt/venv/bin/python3\n", ("/opt/venv/bin/python3",)),
        ("#!/usr/bin/env python3.11\n", ("python3.11",)),
        ("#!/usr/bin/env -S python3 -E\n", ("python3", "-E")),
        ("#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''\n", ("/a b/python",)),
    ],
)
def test_the_interpreter_is_the_one_that_torchrun_names(
    tmp_path: Path, head: str, interpreter: tuple[str, ...]
) -> None:
    (tmp_path / "torchrun").write_text(head)
    assert warm.python_of(tmp_path / "torchrun") == interpreter


def test_a_torchrun_of_another_kind_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_bytes(b"\x7fELF\x00\xff")
    with pytest.raises(WarmError, match="cannot tell which Python"):
        warm.python_of(tmp_path / "torchrun")
    with pytest.raises(WarmError, match="cannot read"):
        warm.python_of(tmp_path / "absent")


def plan_without_torch(folder: Path) -> Plan:
    return Plan(
        "launcher", (sys.executable,), str(folder), 0, ("json:no_such_name", "no_such_module"), str(folder), "", ()
    )


def started(folder: Path) -> Standby:
    return Standby(plan_without_torch(folder), os.environ, folder=folder, exit_file=folder / "exit")


def test_a_standby_says_when_it_is_ready_and_refuses_another_plan(tmp_path: Path) -> None:
    each = started(tmp_path)
    until = time.monotonic() + 60
    while not each.is_ready():
        assert each.is_running() and time.monotonic() < until
    each.check(plan_without_torch(tmp_path))
    with pytest.raises(WarmError, match="has changed since"):
        each.check(replace(plan_without_torch(tmp_path), working_folder="/"))
    each.end()
    assert not each.is_running()


def test_a_standby_dies_with_the_agent(tmp_path: Path) -> None:
    each = started(tmp_path)
    each._line.close()
    assert each.process.wait(60) == 0
    assert (tmp_path / "exit").read_text() == "0"
    each.end()


def test_a_spare_that_is_not_needed_ends_and_one_that_begins_gets_its_order() -> None:
    spares = fork_spares(2)
    if isinstance(spares, bytes):
        os._exit(0 if spares == b'{"argv": []}' else 9)
    spares[0].begin({"argv": []})
    assert ForkedRank(spares[0].pid, ["train.py"]).wait(60.0) == 0
    os.close(spares[1].pipe)
    os.waitpid(spares[1].pid, 0)


def test_a_forked_rank_answers_as_a_subprocess_would() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    rank = ForkedRank(pid, ["train.py"])
    assert rank.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(0.01)
    rank.terminate()
    assert rank.wait() == -15 and rank.poll() == -15
    rank.kill()
