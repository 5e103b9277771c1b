# SPDX-License-Identifier: Apache-2.0
"""Ranks are found, read from their rings or their output, and asked to stop at a step that none has passed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.agent import processes, ranks
from supervisor.agent.api import LaunchSpec
from supervisor.agent.processes import ProcessId
from supervisor.agent.progress import step_to_stop_at
from supervisor.agent.ranks import RankFinder
from supervisor.agent.watching import LineFollower, RankWatch
from supervisor.training.records import Kind
from supervisor.training.ring import RingWriter

ZERO_TIMES = (0.0, 0.0, 0.0, 0.0)


def as_rank(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": "2"}


class Tree:
    """Processes as (children, environment) by id."""

    def __init__(self, below: Mapping[int, list[int]], environments: Mapping[int, dict[str, str]]) -> None:
        self._below = below
        self._environments = environments

    def found(self, *, is_torchrun: bool) -> set[tuple[int, int, int, int]]:
        walked = ranks.walk(
            ProcessId(1, 1),
            is_torchrun=is_torchrun,
            children=lambda pid: self._below.get(pid, []),
            environment=lambda pid: self._environments.get(pid, {}),
        )
        return set(walked)


def test_the_workers_of_a_rank_inherit_its_environment_and_are_no_ranks() -> None:
    tree = Tree({1: [2, 3], 2: [4]}, {2: as_rank(8, 0), 3: as_rank(9, 1), 4: as_rank(8, 0)})
    assert tree.found(is_torchrun=True) == {(8, 0, 2, 2), (9, 1, 3, 2)}


def test_ranks_below_a_script_are_found_and_a_launcher_may_be_one() -> None:
    assert Tree({1: [2], 2: [3]}, {3: as_rank(0, 0)}).found(is_torchrun=False) == {(0, 0, 3, 2)}
    assert Tree({1: [2]}, {1: as_rank(0, 0), 2: as_rank(0, 0)}).found(is_torchrun=False) == {(0, 0, 1, 2)}


def test_a_torchrun_that_was_itself_started_as_a_rank_is_none() -> None:
    tree = Tree({1: [2]}, {1: {"RANK": "5", "LOCAL_RANK": "0"}, 2: as_rank(0, 0)})
    assert tree.found(is_torchrun=True) == {(0, 0, 2, 2)}


@pytest.mark.parametrize("environment", [{"RANK": "0"}, {"RANK": "x", "LOCAL_RANK": "0"}, {"LOCAL_RANK": "0"}])
def test_half_an_environment_makes_no_rank(environment: dict[str, str]) -> None:
    assert Tree({1: [2]}, {2: environment}).found(is_torchrun=True) == set()


def writer(folder: Path, *, rank: int = 3, attempt: int = 1) -> RingWriter:
    return RingWriter(folder / f"rank-{rank}.ring", rank=rank, local_rank=1, world_size=4, attempt=attempt)


def step(ring: RingWriter, number: int) -> None:
    now = time.monotonic_ns()
    ring.stand_at(number, now)
    ring.step(number, number - 1, (time.time_ns(), now), 0.5, None, 7, ZERO_TIMES)


def watch_of(folder: Path) -> RankWatch:
    spec = LaunchSpec(("torchrun", "t.py"), str(folder), (), str(folder / "attempt"))
    return RankWatch(spec, 1, folder, None, is_torchrun=True)


def test_a_rank_makes_itself_known_by_its_ring_and_is_read_from_it(tmp_path: Path) -> None:
    watch = watch_of(tmp_path)
    assert watch.look() == []
    ring = writer(tmp_path)
    (known,) = watch.look()
    assert (known.rank, known.local_rank, known.process.pid) == (3, 1, os.getpid())
    assert watch.look() == []
    watch.read()
    (status,) = watch.statuses([known.process])
    assert (status.step, status.instrumented, status.alive, status.process_state) == (None, True, True, "R")
    for number in (1, 2):
        step(ring, number)
    ring.enter(ring.phase_number("evaluation"), time.monotonic_ns())
    watch.read()
    assert watch.is_settled
    read = watch.taken_rows()
    assert read.source == "client" and [(row.step, row.position, row.loss, row.tokens) for row in read.rows] == [
        (1, 0, 0.5, 7),
        (2, 1, 0.5, 7),
    ]
    assert watch.taken_rows().rows == ()
    (status,) = watch.statuses([])
    assert (status.step, status.phase, status.alive, status.process_state) == (2, "evaluation", False, None)
    assert not watch.has_finished(known)
    ring.note(Kind.FINISHED, 2)
    watch.read()
    assert watch.has_finished(known)
    assert watch.stop_step() >= 4
    watch.close()
    ring.close()


def test_a_lower_rank_that_reports_later_repeats_no_step(tmp_path: Path) -> None:
    watch = watch_of(tmp_path)
    late = writer(tmp_path, rank=1)
    for number in (1, 2):
        step(late, number)
    watch.read()
    lowest = writer(tmp_path, rank=0)
    for number in (1, 2, 3):
        step(lowest, number)
    watch.read()
    step(lowest, 4)
    step(late, 3)
    watch.read()
    assert [row.step for row in watch.taken_rows().rows] == [1, 2, 3, 4]
    watch.close()
    for ring in (late, lowest):
        ring.close()


def test_a_ring_of_another_attempt_is_not_a_rank_of_this_one(tmp_path: Path) -> None:
    ring = writer(tmp_path, attempt=2)
    finder = RankFinder(tmp_path, 1)
    assert finder.rings() == {} and finder.find(None, is_torchrun=True) == []
    finder.close()
    ring.close()


def test_a_file_that_is_no_ring_is_noted_once(tmp_path: Path) -> None:
    (tmp_path / "rank-0.ring").write_bytes(b"x" * 8192)
    finder = RankFinder(tmp_path, 1)
    assert finder.rings() == {} and finder.rings() == {}
    assert len(finder.notes) == 1 and "is no ring of version" in finder.notes[0]


def test_a_ring_older_than_the_process_that_has_its_id_is_not_that_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = writer(tmp_path)
    finder = RankFinder(tmp_path, 1)
    assert len(finder.find(None, is_torchrun=True)) == 1
    age = processes.age_s(ProcessId(1, 0))
    monkeypatch.setattr(ranks, "_age_s", lambda _: age + 60.0)
    assert finder.find(None, is_torchrun=True) == []
    finder.close()
    ring.close()


def test_steps_of_a_script_are_read_from_either_stream(tmp_path: Path) -> None:
    spec = LaunchSpec(("python", "t.py"), "/", (), str(tmp_path))
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "stdout.log").write_text("hello\niter 3: loss 2.5, time 1ms\n")
    (tmp_path / "rank-0" / "stderr.log").write_text("step: 4 loss: nan\n")
    lines = LineFollower(spec, [])
    assert [row.step for row in lines.read(0)] == [3, 4] and lines.step == 4
    assert lines.read(0) == []


def test_a_persons_pattern_is_used_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "stdout.log").write_text("s9 l0.25\n")
    pattern = r"s(?P<step>\d+) l(?P<loss>\S+)"
    good = LineFollower(LaunchSpec(("t",), "/", (), str(tmp_path), step_pattern=pattern), [])
    assert [(row.step, row.loss) for row in good.read(0)] == [(9, 0.25)]
    notes: list[str] = []
    LineFollower(LaunchSpec(("t",), "/", (), str(tmp_path), step_pattern="("), notes)
    assert len(notes) == 1 and "is no regular expression" in notes[0]


@given(st.lists(st.none() | st.integers(0, 10**6), max_size=4), st.none() | st.floats(0.001, 100.0))
def test_the_step_to_stop_at_lies_ahead_of_every_rank(steps: list[int | None], median_s: float | None) -> None:
    chosen = step_to_stop_at(steps, median_s)
    newest = max((step for step in steps if step is not None), default=0)
    assert chosen >= newest + 2
    assert median_s is None or (chosen - newest) * median_s >= 0.5
