# SPDX-License-Identifier: Apache-2.0
"""What an agent answers to orders for attempts that it has never seen."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.agent import record
from supervisor.agent.api import (
    AttemptEnded,
    CheckpointFact,
    LaunchRefused,
    LaunchSpec,
    StartAttempt,
    StopAttempt,
    decode_report,
)
from supervisor.agent.folders import AgentFolders
from supervisor.agent.node import NodeAgent

STOP = StopAttempt(3, 0.0, False, 1, "")


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentFolders:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folders = AgentFolders(tmp_path, "demo", "node-0")
    folders.make()
    return folders


@pytest.fixture
def agent(where: AgentFolders) -> Iterator[NodeAgent]:
    made = NodeAgent(where, {})
    yield made
    made._starter.collect_ended()
    made._watch.close()


def told(agent: NodeAgent) -> list[object]:
    batch = agent._outbox.next_batch(0.0)
    return [] if batch is None else [decode_report(raw) for raw in batch.reports]


def test_an_attempt_that_never_began_has_ended_when_it_is_stopped(agent: NodeAgent, where: AgentFolders) -> None:
    agent._obey(STOP)
    (ended,) = told(agent)
    assert isinstance(ended, AttemptEnded)
    assert (ended.attempt, ended.by_us, ended.exit_code) == (3, True, None)
    kept = record.read(where.record)
    assert kept is not None
    assert kept.is_over


def test_an_order_to_start_that_comes_after_the_stop_starts_nothing(agent: NodeAgent, tmp_path: Path) -> None:
    agent._obey(STOP)
    agent._obey(StartAttempt(3, LaunchSpec(("touch", "started"), str(tmp_path), (), str(tmp_path / "attempt"))))
    assert agent._attempt is None
    assert not (tmp_path / "attempt").exists()
    assert all(isinstance(each, AttemptEnded) for each in told(agent))


def test_an_attempt_that_finds_no_room_is_refused_for_now_and_starts_when_there_is(
    agent: NodeAgent, where: AgentFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = StartAttempt(1, LaunchSpec(("/bin/true",), str(tmp_path), (), str(tmp_path / "attempt")))
    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", no_room)
        agent._obey(order)
    (refused,) = told(agent)
    assert isinstance(refused, LaunchRefused)
    assert not refused.permanent
    assert record.read(where.record) is None
    agent._obey(order)
    assert agent._attempt is not None
    while not agent._attempt.is_over:
        agent._attempt.tick(time.monotonic())


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


QUICK = """
import os, sys, time
with open(os.environ["CHECKPOINT_EVENTS"] + ".rank-0.jsonl", "w") as facts:
    facts.write('{"event": "restored", "step": 4}\\n')
print("iter 5: loss 2.0, time 20.00ms", flush=True)
time.sleep(600)
"""


def test_a_restore_is_told_before_its_first_step(agent: NodeAgent, tmp_path: Path) -> None:
    command = (sys.executable, "-c", QUICK)
    agent._obey(StartAttempt(1, LaunchSpec(command, str(tmp_path), (), str(tmp_path / "attempt"))))
    assert agent._attempt is not None
    while not (tmp_path / "attempt" / "launcher.out").read_text().endswith("ms\n"):
        time.sleep(0.01)
    while agent._attempt._rows_told == 0:
        agent._attempt.tick(time.monotonic())
    order = [r.fact["event"] if isinstance(r, CheckpointFact) else type(r).__name__ for r in told(agent)]
    assert [each for each in order if each in ("restored", "StepsSeen")] == ["restored", "StepsSeen"]
    agent._obey(StopAttempt(1, 0.0, False, 0, ""))
    while agent._attempt is not None:
        agent._turn()
