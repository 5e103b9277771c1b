# SPDX-License-Identifier: Apache-2.0
"""Processes are named by id and start time, and their ends are told at once with the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from supervisor.agent import processes
from supervisor.agent.exits import ExitWatch
from supervisor.agent.processes import ProcessId, ProcessStat


class Started:
    """A child that is not waited for until the test is over."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.child = subprocess.Popen(command, env={"PATH": os.defpath, **environment}, start_new_session=True)
        found = processes.identity_of(self.child.pid)
        assert found is not None
        self.id = found


@pytest.fixture
def start() -> Iterator[type[Started]]:
    started: list[Started] = []

    class Kept(Started):
        def __init__(self, *command: str, **environment: str) -> None:
            super().__init__(*command, **environment)
            started.append(self)

    yield Kept
    for each in started:
        for process in processes.in_sessions_of([each.id]):
            processes.send(process, signal.SIGKILL)
        each.child.kill()
        each.child.wait()


@pytest.fixture
def watch() -> Iterator[ExitWatch]:
    watch = ExitWatch()
    yield watch
    watch.close()


def wait_for_end(watch: ExitWatch) -> list[ProcessId]:
    until = time.monotonic() + 30
    while not (ended := watch.wait(1.0)):
        assert time.monotonic() < until
    return ended


def test_a_name_with_spaces_and_brackets_does_not_confuse_the_reader() -> None:
    fields = "S 1 2 3 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 777" + " 0" * 29 + " 9"
    assert processes.parse_stat(f"42 (tmux: (x) 1) {fields}") == ProcessStat(42, "tmux: (x) 1", "S", 1, 2, 3, 777, 9)
    with pytest.raises(ValueError, match="not the content"):
        processes.parse_stat("cat: no such file")


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("exit 0", 0)])
def test_the_exit_code_is_read_before_the_parent_waits(
    start: type[Started], watch: ExitWatch, command: str, code: int
) -> None:
    started = start("/bin/sh", "-c", f"sleep 0.05; {command}")
    watch.add(started.id)
    assert processes.exit_code(started.id) is None
    assert wait_for_end(watch) == [started.id]
    assert processes.exit_code(started.id) == code
    assert not processes.is_alive(started.id)
    assert watch.wait(0.0) == []


def test_an_end_is_noticed_without_process_descriptors_too(
    start: type[Started], watch: ExitWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    started = start("/bin/sleep", "600")
    watch.add(started.id)
    assert watch.wait(0.0) == []
    processes.send(started.id, signal.SIGKILL)
    assert wait_for_end(watch) == [started.id]


def test_a_process_that_took_over_an_id_is_another(start: type[Started], watch: ExitWatch) -> None:
    started = start("/bin/sleep", "600")
    before = ProcessId(started.id.pid, started.id.started - 1)
    assert processes.stat_of(before) is None
    assert not processes.send(before, signal.SIGKILL)
    assert processes.in_sessions_of([before]) == []
    watch.add(before)
    assert watch.wait(0.0) == [before]
    assert processes.is_alive(started.id)


def test_another_thread_can_end_a_wait(watch: ExitWatch) -> None:
    waker = threading.Thread(target=watch.wake)
    waker.start()
    began = time.monotonic()
    assert watch.wait(60.0) == []
    waker.join()
    assert time.monotonic() - began < 30.0


def test_descendants_and_carriers_of_a_variable_are_found(start: type[Started]) -> None:
    started = start("/bin/sh", "-c", "sleep 600 & echo; wait", SUPERVISOR_TEST_MARK="yes")
    until = time.monotonic() + 30
    while len(processes.carrying("SUPERVISOR_TEST_MARK", "yes")) < 2:
        assert time.monotonic() < until
    below = processes.descendants(started.id.pid)
    assert [each.pid for each in processes.carrying("SUPERVISOR_TEST_MARK", "yes")] == [started.id.pid, *below]
    assert {each.pid for each in processes.in_sessions_of([started.id])} == {started.id.pid, *below}
    assert processes.children(started.id.pid) == below
    assert processes.carrying("SUPERVISOR_TEST_MARK", "no") == []


def test_a_signal_to_a_group_reaches_all_of_it(start: type[Started]) -> None:
    started = start("/bin/sh", "-c", "sleep 600 & wait")
    until = time.monotonic() + 30
    while not (below := processes.descendants(started.id.pid)):
        assert time.monotonic() < until
    child = processes.identity_of(below[0])
    assert child is not None
    processes.send(started.id, signal.SIGTERM, to_group=True)
    while processes.is_alive(child) or processes.is_alive(started.id):
        assert time.monotonic() < until


def test_what_is_gone_has_no_environment_and_no_identity() -> None:
    nobody = 2**22 + 1
    assert processes.environment_of(nobody) == {}
    assert processes.identity_of(nobody) is None
    assert processes.reap(nobody) is None
    assert processes.wait_channel(nobody) == ""
