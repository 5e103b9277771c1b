# SPDX-License-Identifier: Apache-2.0
"""Real ranks restore together: each byte is read by one of them and passed on to those that need it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.test_checkpoint_ranks import launch

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
_REPOSITORY = Path(__file__).parents[2]
_LAST = "step-000000000006-a1"


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a launch to its good end."""
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended


def restore(folder: Path, *more: str, ranks: int = 2) -> list[dict[str, Any]]:
    """Restore on some ranks; returns each one's report."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    run([*command, str(_REPOSITORY / "tests/system/reading_program.py"), str(folder), *more])
    return [json.loads(Path(f"{folder}.read-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Checkpoints of steps 3 and 6 by two ranks."""
    folder = tmp_path / "store"
    launch(folder, "bare", 7)
    return folder


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_file_is_opened_once_and_each_byte_read_once_by_all_ranks_together(store: Path, ranks: int) -> None:
    files = {path.name: path.stat().st_size for path in (store / _LAST).iterdir()}
    reports = restore(store, ranks=ranks)
    opened = [name for each in reports for name, times in each["opened"].items() for _ in range(times)]
    assert sorted(opened) == sorted(f"{_LAST}/{name}" for name in files)
    assert sum(each["bytes"] for each in reports) == files["__0_0.distcp"] + files["__1_0.distcp"]
    assert {each["step"] for each in reports} == {6} and len({each["digest"] for each in reports}) == 1


def test_ranks_whose_group_only_knows_accelerators_talk_over_one_of_their_own() -> None:
    program = (
        "import sys; import torch.distributed as dist; dist.init_process_group('cuda:gloo');"
        "from checkpoint.launch import Identity; from checkpoint.ranks import joined;"
        "me = Identity(dist.get_rank(), 2, 1, 'token');"
        "context = joined(me); ranks = context.__enter__();"
        "sys.stdout.write(f'told {ranks.everyones(me.rank)}\\n');"
        "buffer = memoryview(bytearray(b'abcd' if me.rank == 0 else 4));"
        "[work.wait() for work in ranks.send(buffer, 1)] if me.rank == 0 else ranks.receive(buffer, 0);"
        "sys.stdout.write(f'passed {bytes(buffer)}\\n');"
        "context.__exit__(None, None, None); dist.destroy_process_group()"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    ended = run([*command, sys.executable, "-c", program])
    assert ended.stdout.count("told [0, 1]") == 2 and ended.stdout.count("passed b'abcd'") == 2


def test_a_state_that_does_not_fit_on_one_rank_is_an_error_on_all_and_changes_none(store: Path) -> None:
    first, second = restore(store, "misfit")
    assert first["error"].startswith("StateMismatchError: rank 1: ") and "average" in first["error"]
    assert second["error"].startswith("StateMismatchError: the checkpoint does not fit")
    (untouched, _) = restore(store)
    assert first["digest"] != untouched["digest"]


def test_a_folder_that_one_rank_does_not_see_is_not_taken_for_damage(store: Path) -> None:
    reports = restore(store, "unreadable")
    assert all("do not see the same" in each["error"] for each in reports)
    assert (store / _LAST).is_dir()


def test_a_byte_that_changed_under_one_ranks_reading_has_all_take_the_older_one(store: Path) -> None:
    path = store / _LAST / "__1_0.distcp"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    reports = restore(store)
    assert {each["step"] for each in reports} == {3} and len({each["digest"] for each in reports}) == 1
    assert (store / f"damaged-{_LAST}").is_dir()
