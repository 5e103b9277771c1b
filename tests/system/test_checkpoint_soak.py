# SPDX-License-Identifier: Apache-2.0
"""Ranks and writer are killed at random moments of saving: nothing committed is lost, nothing is left that grows.

`make soak` kills 1,000 times and goes on where it was cut: its progress lies in `.soak/` until it is through.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.services.s3 import S3Server

_REPOSITORY = Path(__file__).parents[2]
_KILLS, _SLICE, _CUT = 1000, 20, 3
_SEED = 0


def soak(folder: Path, kills: int, *, timeout_s: float, server: S3Server | None = None) -> None:
    """Kill until it has been done so often, beginning where an earlier call ended; its lines are printed as they come.

    Raises:
        CalledProcessError: something was lost, damaged or left.
    """
    command = [sys.executable, "-m", "tests.system.kill_soak", str(folder), "--kills", str(kills), "--seed", str(_SEED)]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"}
    if server is not None:
        command += ["--uri", f"{server.make_bucket('soak')}/run"]
        environment |= server.environment
    subprocess.run(command, env=environment, cwd=_REPOSITORY, timeout=timeout_s, check=True)


def done(folder: Path) -> int:
    return int(json.loads((folder / "progress.json").read_text())["done"])


@pytest.mark.system
@pytest.mark.timeout(400)
def test_nothing_committed_is_lost_by_twenty_kills_and_nothing_is_left(tmp_path: Path) -> None:
    soak(tmp_path, _CUT, timeout_s=200)
    assert done(tmp_path) == _CUT
    store = {path.name for path in (tmp_path / "store").iterdir()}
    soak(tmp_path, _SLICE, timeout_s=380)
    assert done(tmp_path) == _SLICE
    assert store and {path.name for path in tmp_path.iterdir() if path.name.startswith("launch")} == set()


@pytest.mark.system
@pytest.mark.timeout(600)
def test_nor_by_twenty_kills_of_what_saves_to_s3(tmp_path: Path) -> None:
    with closing(S3Server(tmp_path / "s3")) as server:
        soak(tmp_path / "soak", _SLICE, timeout_s=500, server=server)
    assert done(tmp_path / "soak") == _SLICE


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_nothing_committed_is_lost_by_a_thousand_kills(capfd: pytest.CaptureFixture[str]) -> None:
    folder = _REPOSITORY / ".soak" / "checkpoint-posix"
    with capfd.disabled():
        soak(folder, _KILLS, timeout_s=4 * 3600)
    shutil.rmtree(folder)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_nor_by_a_thousand_kills_of_what_saves_to_s3(capfd: pytest.CaptureFixture[str]) -> None:
    folder = _REPOSITORY / ".soak" / "checkpoint-s3"
    with capfd.disabled(), closing(S3Server(folder / "server")) as server:
        soak(folder / "soak", _KILLS, timeout_s=4 * 3600, server=server)
    shutil.rmtree(folder)
