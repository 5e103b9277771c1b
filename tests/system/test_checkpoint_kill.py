# SPDX-License-Identifier: Apache-2.0
"""Kills and full disks that are real: SIGKILL at random moments of saves, ENOSPC on a small tmpfs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from checkpoint import Checkpointer
from checkpoint.api import open_catalogue
from checkpoint.slab import memory_folder
from checkpoint.writer_link import drain
from tests.checkpoint.training import events_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
_REPOSITORY = Path(__file__).parents[2]
_KILLS = 10
_SAVER = """
import sys, torch
from checkpoint import Checkpointer
checkpointer = Checkpointer(sys.argv[1], keep=2)
state = {"tensors": [torch.zeros(200_000) for _ in range(3)], "step": 0}
step = checkpointer.restore(state) or 0
assert all(each.eq(step).all() for each in state["tensors"]) and state["step"] == step
print("restored", step, flush=True)
while True:
    step += 1
    state["step"] = step
    for each in state["tensors"]:
        each.fill_(step)
    checkpointer.save(step, state)
    print("saved", step, flush=True)
"""


def test_a_kill_at_any_moment_costs_no_committed_step_and_leaves_nothing_behind(tmp_path: Path) -> None:
    chance = random.Random(7)
    newest = 0
    for _ in range(_KILLS):
        saver = subprocess.Popen(
            [sys.executable, "-c", _SAVER, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert saver.stdout is not None
        try:
            word, step = saver.stdout.readline().split()
            assert word == "restored" and int(step) >= newest
            # By saves and not by time alone, so that there are some however slow the machine is.
            for _ in range(chance.randrange(30)):
                saver.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.02))
        finally:
            saver.kill()
            saver.wait(timeout=60)
            saver.stdout.close()
        # The writer goes on without its rank; what it still commits and prunes would change while we look.
        drain(memory_folder(os.environ), str(tmp_path), deadline_s=60)
        catalogue = open_catalogue(str(tmp_path))
        known = catalogue.committed()
        assert all(catalogue.verify(each.ref) == [] for each in known)
        newest = max([newest, *(each.step for each in known)])
        assert not known or known[-1].step == newest
        assert len(list(tmp_path.iterdir())) <= 6
    assert newest > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB and 64 files; mounting it takes root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=64", "tmpfs", str(folder)], check=True, timeout=60)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


def test_a_really_full_disk_leaves_the_previous_checkpoint_and_training_goes_on(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    store = small_disk / "store"
    with Checkpointer(store, keep=1) as checkpointer:
        checkpointer.save(1, {"weights": torch.ones(100_000)}, wait=True)
        (small_disk / "ballast").write_bytes(b"x" * (3 << 20))
        checkpointer.save(2, {"weights": torch.full((300_000,), 2.0)}, wait=True)
        assert [each.step for each in open_catalogue(str(store)).committed()] == [1]
        (small_disk / "ballast").unlink()
        checkpointer.save(3, {"weights": torch.full((100_000,), 3.0)}, wait=True)
    (failed,) = [each for each in events_of(tmp_path / "events") if each["event"] == "save_failed"]
    assert failed["step"] == 2 and "No space left on device" in failed["message"]
    state = {"weights": torch.zeros(100_000)}
    assert Checkpointer(store).restore(state) == 3
    assert state["weights"].eq(3).all()


def leave_bytes(disk: Path, free: int) -> None:
    """Fill the disk but for this many bytes."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    found = os.statvfs(disk)
    with ballast.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, max(found.f_bavail * found.f_bsize - free, 1))


def leave_files(disk: Path, free: int) -> None:
    """Have the disk take this many more files, and no byte less than before."""
    ballast = disk / "ballast"
    ballast.mkdir(exist_ok=True)
    for each in ballast.iterdir():
        each.unlink()
    for number in range(os.statvfs(disk).f_favail - free):
        (ballast / str(number)).touch()


@pytest.mark.parametrize(
    ("leave", "amounts"), [(leave_bytes, range(0, 1 << 20, 48 << 10)), (leave_files, range(10))], ids=["bytes", "files"]
)
def test_a_disk_that_is_full_at_any_moment_of_a_save_costs_that_save_alone(
    small_disk: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leave: Callable[[Path, int], None],
    amounts: range,
) -> None:
    monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
    store = small_disk / "store"
    catalogue = open_catalogue(str(store))
    state = {"weights": torch.zeros(200_000)}
    with Checkpointer(store, keep=1) as checkpointer:
        checkpointer.save(1, state, wait=True)
        for step, amount in enumerate(amounts, 2):
            before = catalogue.committed()[-1].step
            leave(small_disk, amount)
            state["weights"].fill_(step)
            checkpointer.save(step, state, wait=True)
            (newest,) = catalogue.committed()
            failed = [each["step"] for each in events_of(tmp_path / "events") if each["event"] == "save_failed"]
            assert newest.step == (before if step in failed else step)
            assert catalogue.verify(newest.ref) == []
        assert 2 in failed and amounts[-1] and catalogue.committed()[-1].step == len(amounts) + 1
    assert all(
        "No space" in each["message"] for each in events_of(tmp_path / "events") if each["event"] == "save_failed"
    )
    assert sorted(path.name for path in store.iterdir())[1:] == [Path(newest.uri).name]
    assert Checkpointer(store).restore(state) == newest.step and state["weights"].eq(newest.step).all()
