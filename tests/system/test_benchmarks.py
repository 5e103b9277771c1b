# SPDX-License-Identifier: Apache-2.0
"""A slice of the benchmarks that need real launches: they run to their end and their numbers are of the right kind.

No bar is held here, because the machine may be busy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import checkpoint_engine, control_plane, detection, flash_checkpoint, recovery
from benchmarks.checkpoint_rank import MEMCPY, OURS
from benchmarks.detection import Breaker
from benchmarks.gpu_checkpoint import NO_GPU
from benchmarks.measuring import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_torchrun_alone_and_the_supervised_launch_recover_from_a_kill(tmp_path: Path) -> None:
    variants = [replace(v, share=1.0) for v in recovery.VARIANTS if v.warm in (None, "ranks")]
    found = recovery.measured(1, variants, tmp_path)
    assert [each.failures for each in found.values()] == [[], []]
    assert [len(each.recovery_s) for each in found.values()] == [1, 1]
    supervised = found[variants[1].name]
    (incident,) = supervised.incidents
    assert incident.recovery_s == pytest.approx(supervised.recovery_s[0], abs=0.5)
    assert {"detect", "stop", "diagnose", "start", "import", "restore", "first step"} <= incident.parts().keys()


def test_killed_stopped_and_sleeping_ranks_are_noticed(tmp_path: Path) -> None:
    pace = replace(detection.PACES[0], calm_steps=50)
    found = detection.broken(Breaker(pace, tmp_path), trials=1)
    assert found.step_s >= pace.step_s
    assert min(found.exits_s) > 0 and min(*found.stopped_s, *found.asleep_s) > 3.0


def test_cost_of_controller_agent_and_standby_is_told(tmp_path: Path) -> None:
    costs = control_plane.measured(tmp_path, step_s=0.2, watch_s=3.0, quiet_s=0.0)
    assert costs.keys() == {"controller", "agent", "standby"}
    assert all(cost.pss_mb > 1 and cost.rss_mb >= cost.pss_mb for cost in costs.values())


def test_every_way_to_save_takes_its_turns_beside_a_plain_copy(tmp_path: Path) -> None:
    (found,) = checkpoint_engine.measured_by(tmp_path, size_mib=8, saves=1, dlrover=None, rank_counts=(2,))
    assert [*found.samples] == [MEMCPY, OURS, "dcp.save", "async_save, thread", "async_save, process"]
    assert all(stall > 0 and ended >= stall for each in found.samples.values() for stall, ended, _ in each)
    assert {len(each) for each in found.samples.values()} == {2}
    assert len(checkpoint_engine.bars_of(found)) == 2
    (alone,) = checkpoint_engine.begun(tmp_path, size_mib=8, launches=1, rank_counts=(2,))
    assert [*alone.samples] == [MEMCPY, OURS] and len(checkpoint_engine.first_stalls([found, alone], 2)) == 2
    assert checkpoint_engine.first_bar([found, alone], 2).value > 0
    assert {*checkpoint_engine.found_in(found)} > {*found.samples}


def test_a_peer_that_is_not_installed_is_left_out_with_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert flash_checkpoint.versions(tmp_path / "python") is None
    empty = tmp_path / "empty"
    empty.write_text("#!/bin/sh\necho 'No module named dlrover' >&2\nexit 1\n")
    empty.chmod(0o700)
    assert flash_checkpoint.versions(empty) is None
    told = capfd.readouterr().out.splitlines()
    assert len(told) == 2 and all("pip install 'dlrover" in line for line in told)
    assert "No module named dlrover" in told[1]


def test_the_rate_to_the_disk_is_told_beside_direct_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    monkeypatch.setattr(checkpoint_engine, "WRITES", 1)
    assert checkpoint_engine.direct_rate(tmp_path, 16 << 20) > 0
    assert checkpoint_engine.our_rate(tmp_path, 8) > 0


def gpu_checkpoint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_checkpoint", "--output", str(folder / "result.json"), *arguments]
    around = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=around, cwd=ROOT, capture_output=True, text=True)


def test_without_a_gpu_its_check_says_that_it_did_not_run(tmp_path: Path) -> None:
    ended = gpu_checkpoint(tmp_path)
    assert (ended.returncode, [*tmp_path.iterdir()]) == (NO_GPU, [])
    assert "DID NOT RUN" in ended.stdout and f"exit code {NO_GPU}" in ended.stdout


def test_the_gpu_check_rehearses_every_line_it_can_and_measures_nothing(tmp_path: Path) -> None:
    ended = gpu_checkpoint(tmp_path, "--rehearse", "--folder", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("right: ") == 5 and "NOTHING was measured" in ended.stdout
    assert [*tmp_path.iterdir()] == []
