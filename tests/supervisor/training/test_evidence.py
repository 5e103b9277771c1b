# SPDX-License-Identifier: Apache-2.0
"""Torch's worker server is used where it is loaded; when it fails, that costs one log line and not the run."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.training import evidence, supervise

MODULE = "torch._C._distributed_c10d"


class WorkerServer:
    """Stands for torch's: refuses a path that exists."""

    started: list[WorkerServer]

    def __init__(self, path: str) -> None:
        if Path(path).exists():
            raise RuntimeError(f"{path} already exists")
        Path(path).touch()
        self.path = path
        WorkerServer.started.append(self)

    def shutdown(self) -> None:
        raise AssertionError("it may wait for ever with the interpreter's lock held")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    WorkerServer.started = []
    module = SimpleNamespace(_WorkerServer=WorkerServer)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


@pytest.mark.parametrize("is_loaded_first", [True, False])
def test_the_server_runs_from_the_moment_torch_is_loaded_and_is_never_shut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace, is_loaded_first: bool
) -> None:
    if not is_loaded_first:
        monkeypatch.delitem(sys.modules, MODULE)
    run = supervise({"SUPERVISOR_RANK_FOLDER": str(tmp_path), "RANK": "3"})
    assert len(WorkerServer.started) == int(is_loaded_first)
    monkeypatch.setitem(sys.modules, MODULE, torch)
    for step, _ in run.batches(range(3)):
        run.report(step)
    (server,) = WorkerServer.started
    assert server.path == str(tmp_path / "rank-3.sock")
    run.close()


def test_a_script_with_its_own_loop_gets_the_server_at_its_first_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace
) -> None:
    monkeypatch.delitem(sys.modules, MODULE)
    run = supervise({"SUPERVISOR_RANK_FOLDER": str(tmp_path)})
    monkeypatch.setitem(sys.modules, MODULE, torch)
    run.report(1)
    run.report(2)
    assert len(WorkerServer.started) == 1
    run.close()


def test_a_socket_left_by_the_rank_before_is_replaced(tmp_path: Path, torch: SimpleNamespace) -> None:
    (tmp_path / "rank-0.sock").touch()
    assert evidence.start_stack_server(tmp_path / "rank-0.sock")


def refuse(path: str) -> WorkerServer:
    raise RuntimeError("bind failed")


@pytest.mark.parametrize("module", [SimpleNamespace(), SimpleNamespace(_WorkerServer=refuse)])
def test_a_server_that_does_not_start_costs_a_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, module: SimpleNamespace
) -> None:
    monkeypatch.setitem(sys.modules, MODULE, module)
    with caplog.at_level(logging.WARNING):
        assert not evidence.start_stack_server(tmp_path / "rank-0.sock")
    assert len(caplog.records) == 1 and "worker server did not start" in caplog.text


def test_a_path_too_long_for_a_socket_costs_a_log_line(
    tmp_path: Path, torch: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not evidence.start_stack_server(tmp_path / ("x" * 100) / "rank-0.sock")
    assert "exceeds 107 bytes" in caplog.text


def test_a_hook_put_on_top_of_ours_is_left_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    uncaught = evidence.UncaughtException(lambda name: None)
    monkeypatch.setattr(sys, "excepthook", print)
    uncaught.remove()
    assert sys.excepthook is print
