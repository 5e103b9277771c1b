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
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[2]
_KILLS, _SLICE, _CUT = 1000, 40, 3
_SEED = 0


def soak(folder: Path, kills: int, *, timeout_s: float) -> None:
    """Kill until it has been done so often, beginning where an earlier call ended; its lines are printed as they come.

    Raises:
        CalledProcessError: something was lost, damaged or left.
    """
    command = [sys.executable, "-m", "tests.system.kill_soak", str(folder), "--kills", str(kills), "--seed", str(_SEED)]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, cwd=_REPOSITORY, timeout=timeout_s, check=True)


def done(folder: Path) -> int:
    return int(json.loads((folder / "progress.json").read_text())["done"])


@pytest.mark.system
@pytest.mark.timeout(400)
def test_nothing_committed_is_lost_by_forty_kills_and_nothing_is_left(tmp_path: Path) -> None:
    soak(tmp_path, _CUT, timeout_s=200)
    assert done(tmp_path) == _CUT
    store = {path.name for path in (tmp_path / "store").iterdir()}
    soak(tmp_path, _SLICE, timeout_s=380)
    assert done(tmp_path) == _SLICE
    assert store and {path.name for path in tmp_path.iterdir() if path.name.startswith("launch")} == set()


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_nothing_committed_is_lost_by_a_thousand_kills(capfd: pytest.CaptureFixture[str]) -> None:
    folder = _REPOSITORY / ".soak" / "checkpoint-posix"
    with capfd.disabled():
        soak(folder, _KILLS, timeout_s=4 * 3600)
    shutil.rmtree(folder)
