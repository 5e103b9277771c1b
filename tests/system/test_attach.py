# SPDX-License-Identifier: Apache-2.0
"""A launch that somebody else started is watched, told about, and never changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

SCRIPT = """
import os, sys, time
for step in range(1, 2000):
    print(f"iter {step}: loss {3.0 - step / 1000:.4f}, time 20.00ms", flush=True)
    time.sleep(0.02)
    if os.path.exists(sys.argv[1]):
        raise TypeError("unsupported operand type(s) for +: 'int' and 'str'")
"""


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not holds():
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.1)


def test_an_attached_launch_is_followed_until_its_error_and_left_alone(tmp_path: Path) -> None:
    script, trigger, log = tmp_path / "train.py", tmp_path / "break-now", tmp_path / "train.log"
    script.write_text(SCRIPT)
    environment = {**os.environ, "SUPERVISOR_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        launch = subprocess.Popen([sys.executable, script, trigger], stdout=output, stderr=output)
    words = [sys.executable, "-m", "supervisor", "attach", str(launch.pid)]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        journal = tmp_path / "home" / "runs" / f"attach-{launch.pid}" / "journal.jsonl"
        until(lambda: journal.exists() and '"ProgressSampled"' in journal.read_text())
        assert launch.poll() is None
        trigger.touch()
        assert launch.wait(60) == 1
        said, _ = watching.communicate(timeout=120)
    finally:
        launch.kill()
        watching.kill()
        watching.communicate()
    assert watching.returncode == 3, said
    assert "TypeError" in said
    assert "Launch" not in "".join(line for line in journal.read_text().splitlines() if '"attempt":2' in line)


def test_the_stacks_of_an_attached_launch_that_hangs_are_kept_while_a_person_is_asked(tmp_path: Path) -> None:
    script, trigger, log = tmp_path / "train.py", tmp_path / "hang-now", tmp_path / "train.log"
    script.write_text(SCRIPT.replace("raise TypeError", "time.sleep(600); raise TypeError"))
    environment = {**os.environ, "SUPERVISOR_HOME": str(tmp_path / "home")}
    with log.open("wb") as output:
        launch = subprocess.Popen([sys.executable, script, trigger], stdout=output, stderr=output)
    config = tmp_path / "supervisor.toml"
    config.write_text("[detection]\nsilence_s = 3\n")
    words = [sys.executable, "-m", "supervisor", "attach", "-c", str(config), str(launch.pid)]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        folder = tmp_path / "home" / "runs" / f"attach-{launch.pid}"
        journal = folder / "journal.jsonl"
        until(lambda: journal.exists() and '"ProgressSampled"' in journal.read_text())
        trigger.touch()
        until(lambda: any((folder / "incidents").glob("*/stacks-*")))
        (stacks,) = (folder / "incidents").glob("*/stacks-*")
        assert "train.py:7" in stacks.read_text()
        assert launch.poll() is None
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=120)
        launch.kill()
        launch.wait()


def test_who_stops_watching_leaves_the_launch_running(tmp_path: Path) -> None:
    script, log = tmp_path / "train.py", tmp_path / "train.log"
    script.write_text(SCRIPT)
    environment = {**os.environ, "SUPERVISOR_HOME": str(tmp_path / "home")}
    with log.open("wb") as output:
        launch = subprocess.Popen([sys.executable, script, tmp_path / "never"], stdout=output, stderr=output)
    words = [sys.executable, "-m", "supervisor", "attach", str(launch.pid), "--mode", "observe"]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        journal = tmp_path / "home" / "runs" / f"attach-{launch.pid}" / "journal.jsonl"
        until(lambda: journal.exists() and '"ProgressSampled"' in journal.read_text())
        watching.send_signal(signal.SIGINT)
        said, _ = watching.communicate(timeout=120)
        assert watching.returncode == 130, said
        assert launch.poll() is None
    finally:
        launch.kill()
        launch.wait()
        watching.kill()
        watching.communicate()


@pytest.mark.parametrize(("target", "said"), [("999999999", "no process 999999999"), ("job-7", "process id")])
def test_what_cannot_be_attached_to_is_named(tmp_path: Path, target: str, said: str) -> None:
    environment = {**os.environ, "SUPERVISOR_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-m", "supervisor", "attach", target]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr
