# SPDX-License-Identifier: Apache-2.0
"""Promises that hold for any story: events in any order, late, twice, of old attempts, and orders at any time."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Step
from hypothesis import strategies as st

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.codec import decode, decode_union, encode
from supervisor.core.machine import advance
from supervisor.core.state import RunState
from supervisor.core.values import Phase
from tests.supervisor.core.invariants import ACTING, Memory
from tests.supervisor.core.world import POLICIES, Move, World, moves, play

FEWER = os.environ.get("CORE_STORIES")
"""Set while planted bugs are looked for: any story that fails will do, so none is made shorter."""
STORIES = settings(
    max_examples=int(FEWER or 200),
    phases=[Step.explicit, Step.generate] if FEWER else list(Step),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=False,
)
NAMES = st.sampled_from(sorted(POLICIES))


@STORIES
@given(NAMES, st.booleans(), moves())
def test_every_promise_holds_after_every_event(name: str, attached: bool, story: list[Move]) -> None:
    world = World(POLICIES[name], attached=attached)
    play(world, story, Memory(world).watch)


@STORIES
@given(NAMES, moves(with_person=False))
def test_every_promise_holds_without_a_person(name: str, story: list[Move]) -> None:
    world = World(POLICIES[name])
    play(world, story, Memory(world).watch)


@STORIES
@given(NAMES, moves())
def test_replaying_the_journal_gives_the_state(name: str, story: list[Move]) -> None:
    """The journal leaves out what changed nothing, and is read back from JSON."""
    world = World(POLICIES[name])
    lines = [json.dumps(encode(world.journal[0]))]

    def write(before: RunState, event: e.Event, world: World) -> None:
        if world.state != before or world.made:
            lines.append(json.dumps(encode(event)))

    play(world, story, write)
    state: RunState | None = None
    for line in lines:
        state, _ = advance(state, decode_union(e.EVENTS, json.loads(line)), POLICIES[name])
    assert state == world.state
    assert decode(RunState, json.loads(json.dumps(encode(state), allow_nan=False))) == state


@STORIES
@given(NAMES, moves(most=40))
def test_time_alone_always_moves_a_run_on_or_tells_a_person(name: str, story: list[Move]) -> None:
    world = World(POLICIES[name])
    play(world, story, lambda before, event, world: None)
    memory_of_phases = []
    for _ in range(40):
        if world.state.is_final:
            return
        before = world.state
        world.take(world.reach_deadline(0, 0))
        assert world.state.phase is not before.phase or any(isinstance(x, d.Notify) for x in world.made)
        after = world.state
        assert after.is_final or after.deadline > world.at
        memory_of_phases.append(world.state.phase)
    assert set(memory_of_phases[-5:]) <= {Phase.WAITING, Phase.TRAINING, Phase.LAUNCHING}


@pytest.mark.parametrize("name", ["observe", "advise"])
@STORIES
@given(story=moves(with_person=False))
def test_without_a_person_observing_and_advising_act_on_nothing(name: str, story: list[Move]) -> None:
    world = World(POLICIES[name])

    def watch(before: RunState, event: e.Event, world: World) -> None:
        if not isinstance(event, e.RunSubmitted):
            assert not [x for x in world.made if isinstance(x, ACTING)]

    play(world, story, watch)


@STORIES
@given(NAMES, moves(most=40), st.integers(0, 3))
def test_fact_told_again_at_once_changes_nothing(name: str, story: list[Move], pick: int) -> None:
    world = World(POLICIES[name])
    person = (e.OrderGiven, e.StopSignalled, e.TimePassed)

    def watch(before: RunState, event: e.Event, world: World) -> None:
        if not isinstance(event, person):
            state, made = advance(world.state, event, world.policy)
            assert state == world.state
            assert not [x for x in made if not isinstance(x, d.Notify)]

    play(world, story, watch)
