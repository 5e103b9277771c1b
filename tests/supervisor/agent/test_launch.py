# SPDX-License-Identifier: Apache-2.0
"""What a launcher is given, and what remains of it whoever dies."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.agent import launch, processes
from supervisor.agent.api import LaunchSpec, RankExit
from supervisor.agent.launch import LaunchError


@pytest.fixture
def spec(tmp_path: Path) -> LaunchSpec:
    return LaunchSpec(
        command=("torchrun", "train.py"),
        working_folder=str(tmp_path),
        environment=(("CHECKPOINT_ATTEMPT", "3"),),
        attempt_folder=str(tmp_path / "attempt-3"),
    )


def environment(spec: LaunchSpec, own: dict[str, str], *, is_torchrun: bool = True) -> dict[str, str]:
    return launch.environment(own, spec, run="gpt", attempt=3, rank_folder=Path("/shm/a3"), is_torchrun=is_torchrun)


def test_ranks_learn_their_attempt_and_where_to_report(spec: LaunchSpec) -> None:
    result = environment(spec, {"HOME": "/root"})
    assert result["HOME"] == "/root" and result["CHECKPOINT_ATTEMPT"] == "3"
    assert (result["SUPERVISOR_RUN"], result["SUPERVISOR_ATTEMPT"]) == ("gpt", "3")
    assert (result["SUPERVISOR_RANK_FOLDER"], result["CHECKPOINT_EVENTS"]) == ("/shm/a3", "/shm/a3/checkpoint")


def test_torchrun_neither_restarts_nor_hides_its_ranks_output(spec: LaunchSpec) -> None:
    result = environment(spec, {"PET_MAX_RESTARTS": "5"})
    assert result["PET_MAX_RESTARTS"] == "0" and result["PET_REDIRECTS"] == "3"
    assert result["PET_LOG_DIR"] == f"{spec.attempt_folder}/torchrun"
    assert not any(name.startswith("PET_") for name in environment(spec, {}, is_torchrun=False))


def test_what_the_user_set_for_nccl_stays(spec: LaunchSpec) -> None:
    assert environment(spec, {})["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert environment(spec, {"TORCH_FR_BUFFER_SIZE": "5"})["TORCH_FR_BUFFER_SIZE"] == "5"
    given = replace(spec, environment=(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),))
    assert environment(given, {})["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert "OMP_NUM_THREADS" not in environment(spec, {})


def test_a_launch_that_cannot_work_is_an_error_that_says_what_to_do(spec: LaunchSpec, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    for change, message in (
        ({"command": ()}, "the command is empty"),
        ({"command": ("no-such-program",)}, "no program 'no-such-program' on the PATH"),
        ({"command": ("./absent",)}, "there is no program .*/absent"),
        ({"command": ("./plain",)}, "may not be executed; run chmod"),
        ({"working_folder": "/no/such/folder"}, "working folder /no/such/folder is not there"),
    ):
        with pytest.raises(LaunchError, match=message):
            launch.check(replace(spec, **change), os.environ)
    launch.check(replace(spec, command=("sh",)), os.environ)


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $PPID; exit 2", 2)])
def test_the_exit_code_is_kept_in_a_file(spec: LaunchSpec, tmp_path: Path, script: str, code: int) -> None:
    launch.make_attempt_folder(spec)
    exit_file = tmp_path / "exit"
    assert launch.kept_exit_code(exit_file) is None
    command = ("sh", "-c", f"echo out; echo err >&2; {script}")
    started = launch.start(replace(spec, command=command), os.environ, exit_file)
    started.wait(30)
    assert launch.kept_exit_code(exit_file) == code
    out, err = launch.output_files(spec)
    assert out.read_text() == "out\n" and err.read_text() == "err\n"


def test_the_launcher_gets_the_usual_signals_and_a_session_of_its_own(spec: LaunchSpec, tmp_path: Path) -> None:
    launch.make_attempt_folder(spec)
    started = launch.start(replace(spec, command=("sleep", "600")), os.environ, tmp_path / "exit")
    wrapper = processes.identity_of(started.pid)
    assert wrapper is not None
    launcher = launch.launcher_of(wrapper)
    assert launcher is not None
    until = time.monotonic() + 30
    while (found := processes.stat_of(launcher)) is None or found.name != "sleep":
        assert time.monotonic() < until
    assert found.session == started.pid
    processes.send(launcher, signal.SIGTERM)
    started.wait(30)
    assert launch.kept_exit_code(tmp_path / "exit") == -signal.SIGTERM
    assert launch.launcher_of(wrapper) is None


FAILURES = """
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 71)
  error_file: <N/A>
  exitcode  : 1 (pid: 70)
"""


def test_codes_that_were_not_seen_come_from_torchruns_own_list(tmp_path: Path) -> None:
    (tmp_path / "launcher.err").write_text(FAILURES)
    unknown, known = RankExit(1, 1, 71, None, 5.0), RankExit(0, 0, 70, -15, 6.0)
    assert launch.with_codes((unknown, known), tmp_path / "launcher.err") == (replace(unknown, exit_code=-9), known)
    assert launch.with_codes((unknown,), tmp_path / "absent") == (unknown,)
    assert launch.failure_codes("nothing of the kind") == {}
