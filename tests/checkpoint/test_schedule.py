# SPDX-License-Identifier: Apache-2.0
"""Ranks whose clocks differ save after the same steps, and `due` never waits for anyone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.api import Store
from checkpoint.interval import Every, parse_every
from checkpoint.schedule import SCHEDULE, AgreedSteps, FixedSteps, make_schedule
from checkpoint.stores import PosixStore
from tests.checkpoint.faulty import FaultyStore

LEAD_S = 0.02
DEADLINE_S = 60.0


class Rank:
    """One rank of a run whose steps take as long as its clock says."""

    def __init__(
        self, store: Store, rank: int, world_size: int, every: str, *, step_s: float, token: str = "t"
    ) -> None:
        self.now = 1000.0 * rank
        self.late: list[int] = []
        self.step_s = step_s
        self.schedule = AgreedSteps(
            parse_every(every),
            store,
            rank=rank,
            world_size=world_size,
            token=token,
            mttf_s=1e6,
            lead_s=LEAD_S,
            clock=lambda: self.now,
            when_late=self.late.append,
        )

    def step(self, step: int) -> bool:
        self.now += self.step_s
        return self.schedule.due(step)

    @property
    def next(self) -> int | None:
        return self.schedule._due


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., list[Rank]]]:
    made: list[Rank] = []

    def make(every: str, *step_s: float, store: Store | None = None) -> list[Rank]:
        common = store or PosixStore(tmp_path)
        common.make_folder("")
        made.extend(Rank(common, rank, len(step_s), every, step_s=each) for rank, each in enumerate(step_s))
        return made

    yield make
    for each in made:
        each.schedule.close()


def train(ranks: list[Rank], steps: range) -> list[list[int]]:
    """Each rank's saves. The news has time: ranks go on when those that know nothing have heard it."""
    saves: list[list[int]] = [[] for _ in ranks]
    for step in steps:
        for rank, saved in zip(ranks, saves, strict=True):
            if rank.step(step):
                saved.append(step)
        if not ranks[0].schedule._is_measuring:
            wait_until(lambda: all(rank.next is not None for rank in ranks))
    return saves


def wait_until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_fixed_steps_are_multiples() -> None:
    schedule = FixedSteps(5)
    assert [step for step in range(12) if schedule.due(step)] == [5, 10]
    schedule.saved(1.0, 1.0)
    schedule.close()
    assert isinstance(
        make_schedule(
            Every(steps=5),
            PosixStore(Path("/x")),
            rank=0,
            world_size=1,
            token="",
            mttf_s=1,
            when_late=lambda _step: None,
        ),
        FixedSteps,
    )


@settings(max_examples=40, deadline=None)
@given(
    step_s=st.floats(0.01, 20.0), wanted_s=st.integers(1, 300), start=st.integers(0, 10**6), jitter=st.floats(0.0, 0.2)
)
def test_alone_saves_are_as_far_apart_as_wished(step_s: float, wanted_s: int, start: int, jitter: float) -> None:
    rank = Rank(PosixStore(Path("/nowhere")), 0, 1, f"{wanted_s}s", step_s=step_s)
    saved_at = []
    for count in range(max(40, int(4 * wanted_s / step_s))):
        rank.step_s = step_s * (1 + (jitter if count % 2 else -jitter))
        if rank.step(start + count):
            saved_at.append(rank.now)
    apart = [after - before for before, after in itertools.pairwise(saved_at)]
    assert apart
    for each in apart:
        assert abs(each - max(wanted_s, step_s)) <= 1.3 * step_s + 2.5 * jitter * max(wanted_s, step_s)


def test_ranks_with_clocks_of_their_own_save_after_the_same_steps(ranks: Callable[..., list[Rank]]) -> None:
    saves = train(ranks("20s", 1.0, 1.7, 0.3), range(101, 220))
    assert saves[0] == saves[1] == saves[2]
    assert saves[0][0] <= 133 and {b - a for a, b in itertools.pairwise(saves[0])} == {20}


def test_a_rank_that_has_not_heard_goes_on_without_waiting_and_is_back_at_the_next_save(
    ranks: Callable[..., list[Rank]], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = ranks("5s", 1.0, 1.0)
    for step in range(20):
        first.step(step)
    wait_until(lambda: first.next is not None)
    due = first.next
    assert due is not None
    assert not any(second.step(step) for step in range(due + 1))
    wait_until(lambda: second.next == due)
    assert (
        not second.step(due + 1) and f"learned too late of a save, which cannot be committed step={due}" in caplog.text
    )
    assert (first.late, second.late) == ([], [due])
    assert first.step(due) and not first.step(due + 1)
    wait_until(lambda: first.next is not None and first.next == second.next)
    saves = train([first, second], range(due + 2, due + 20))
    assert saves[0] == saves[1] != []


def test_a_store_that_is_away_delays_the_next_save_on_all_ranks_alike(
    ranks: Callable[..., list[Rank]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(PosixStore(tmp_path))
    both = ranks("5s", 1.0, 1.0, store=store)

    def away(_what: str, _count: int) -> None:
        raise OSError("gone")

    store.before = away
    assert not any(rank.step(step) for step in range(60) for rank in both)
    wait_until(lambda: "cannot be told yet" in caplog.text)
    assert [rank.next for rank in both] == [None, None]
    store.heal()
    wait_until(lambda: None not in [rank.next for rank in both])
    due = both[0].next
    assert due == both[1].next and due is not None and due > 60


def test_what_another_launch_has_left_is_not_listened_to(ranks: Callable[..., list[Rank]], tmp_path: Path) -> None:
    (tmp_path / SCHEDULE).write_text('{"launch": "other", "serial": 99, "due": 12}')
    saves = train(ranks("5s", 1.0, 1.0), range(30))
    assert saves[0] == saves[1] and 12 not in saves[0][:1]
    for damaged in ("", "[]", "{}", '{"launch": "t", "serial": "x", "due": 1}'):
        (tmp_path / SCHEDULE).write_text(damaged)
        assert Rank(PosixStore(tmp_path), 1, 2, "5s", step_s=1.0).schedule._read() is None


def test_the_automatic_interval_follows_the_cost_of_saves(tmp_path: Path) -> None:
    rank = Rank(PosixStore(tmp_path), 0, 1, "auto", step_s=1.0)
    saves = []
    for step in range(4000):
        if rank.step(step):
            saves.append(step)
            rank.schedule.saved(0.5 if len(saves) < 4 else 0.02, 2.0)
    assert saves[0] in range(65, 75)
    assert saves[2] - saves[1] == pytest.approx(1000, abs=2)
