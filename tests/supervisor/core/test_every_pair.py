# SPDX-License-Identifier: Apache-2.0
"""Every event in every place: which phase it leads to, that it counts once, and that an older attempt's is nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.machine import ON_DEADLINE, advance
from supervisor.core.values import FINAL_PHASES, Phase
from tests.supervisor.core.journeys import PLACES, Journey, happenings

LETTERS = {
    Phase.LAUNCHING: "L",
    Phase.TRAINING: "T",
    Phase.STOPPING: "S",
    Phase.DIAGNOSING: "D",
    Phase.PROBING: "P",
    Phase.WAITING: "W",
    Phase.SUCCEEDED: "+",
    Phase.ABANDONED: "x",
}
TABLE = """
    launch ordered ------------------------+ . : nothing changes and nobody is told anything
    starting --------------------------------+ L T S D P W + x: the phase afterwards
    training ----------------------------------+
    asks to stop --------------------------------+
    only watching ---------------------------------+
    attached ----------------------------------------+
    stops failure -------------------------------------+
    stops to leave --------------------------------------+
    stops to pause ----------------------------------------+
    stops to relaunch ---------------------------------------+
    diagnosing ------------------------------------------------+
    probing -----------------------------------------------------+
    waits to retry ------------------------------------------------+
    waits for nodes -------------------------------------------------+
    paused ------------------------------------------------------------+
    asks to relaunch ----------------------------------------------------+
    cannot stop -----------------------------------------------------------+
    succeeded ---------------------------------------------------------------+
    abandoned -----------------------------------------------------------------+
    left alive ------------------------------------------------------------------+
    RunSubmitted           . . . . . . . . . . . . . . . . . L L S
    ControllerReturned     L L T T T T S S S S D P . . . . . . . .
    AttemptStarted         L . . . . . . . . . . . . . . . . . . .
    LaunchFailed for now   . . . . . . . . . . . . . . . . . . . .
    LaunchFailed for good  x S . . . . . . . . . . . . . . . . . .
    RanksImported          L L . . . . . . . . . . . . . . . . . .
    AttemptRestored        L L . . . . . . . . . . . . . . . . . .
    ProgressSampled        T T T T T T S S S S . . . . . . . . . .
    CheckpointCommitted    L L T T T T S S S S D P W W W W W . . .
    RankFailed             S S S . . T . . . . . . . . . . . . . .
    HangFound              S S S . . T . . . . . . . . . . . . . .
    LossSpiked             S S S . . T . . . . . . . . . . . . . .
    AttemptEnded well      + + + + + + + x W L . . . . . . + . . .
    AttemptEnded badly     D D D D D D D x W L . . . . . . D . . .
    Diagnosed              . . . . . . . . . . L . . . . . . . . .
    Probed                 . . . . . . . . . . . L . . . . . . . .
    NodeCordoned           . . . . . . . . . . . . . W . . . . . .
    StopSignalled          S S S S S x S S S S x x x x x x x . . .
    TimePassed early       . . . . . . . . . . . . . . . . . . . .
    TimePassed deadline    S S S T T T W S S W L L L W W W W . . .
    order pause            S S S S S T S S S S D P W W W W W . . .
    order resume           L L T T T T S S S S D P L L L L W . . .
    order stop             S S S S S x S S S S x x x x x x x . . .
    order approve          L L T S T T S S S S D P W W W L W . . .
    order rollback         L L S T T T S S S S D P W W L L W . . .
    order skip             S S S S S T S S S S D P L W L L W . . .
    order replace          L L T T T T S S S S D P W W W W W . . .
    order freeze           L L T T T T S S S S D P W W W W W . . .
    order thaw             L L T T T T S S S S D P W W W W W . . .
    order correct          L L T T T T S S S S D P W W W W W . . .
"""
HEAD = len(PLACES)
LINES = TABLE.strip("\n").splitlines()
HAPPENINGS = tuple(happenings(PLACES["training"]()))
REPEATABLE = ("order", "StopSignalled", "TimePassed", "RunSubmitted")


def row_of(line: str) -> tuple[str, list[str]]:
    (*words,) = line.split()
    cells = words[-HEAD:]
    return " ".join(words[:-HEAD]), cells


ROWS = dict(row_of(line) for line in LINES[HEAD:])


def test_table_names_every_place_in_order_and_every_event() -> None:
    assert [line.split(" -")[0].strip() for line in LINES[:HEAD]] == list(PLACES)
    assert tuple(ROWS) == HAPPENINGS
    assert {name.split()[0] for name in HAPPENINGS} - {"order"} == set(e.EVENTS) - {"OrderGiven"}


def outcome(journey: Journey, event: e.Event) -> str:
    after, made = advance(journey.state, event, journey.policy)
    return "." if after == journey.state and not made else LETTERS[after.phase]


@pytest.mark.parametrize("name", HAPPENINGS)
def test_event_leads_to_the_phase_of_the_table_from_every_place(name: str) -> None:
    journeys = {place: make() for place, make in PLACES.items()}
    found = {place: outcome(journey, happenings(journey)[name]) for place, journey in journeys.items()}
    assert found == dict(zip(PLACES, ROWS[name], strict=True))


@pytest.mark.parametrize("place", PLACES)
def test_event_of_an_older_attempt_changes_nothing(place: str) -> None:
    journey = PLACES[place]()
    state = replace(journey.state, attempt=7)
    told_of: list[Any] = [event for event in happenings(journey).values() if hasattr(event, "attempt")]
    for event in told_of:
        for attempt in (1, 6, 8):
            assert advance(state, replace(event, attempt=attempt), journey.policy) == (state, ())


@pytest.mark.parametrize("place", PLACES)
def test_fact_that_is_told_twice_counts_once(place: str) -> None:
    journey = PLACES[place]()
    for name, event in happenings(journey).items():
        if name.startswith(REPEATABLE):
            continue
        once, _ = advance(journey.state, event, journey.policy)
        twice, made = advance(once, event, journey.policy)
        assert twice == once, name
        assert not [x for x in made if not isinstance(x, d.Notify)], name


@pytest.mark.parametrize("place", PLACES)
def test_every_living_place_has_a_deadline_that_moves_or_ends_the_phase(place: str) -> None:
    journey = PLACES[place]()
    if journey.state.is_final:
        assert journey.state.deadline == float("inf")
        return
    before = journey.state
    journey.deadline()
    assert journey.state.phase is not before.phase or journey.state.deadline > before.deadline
    assert journey.made


def test_every_phase_but_the_final_ones_says_what_its_deadline_means() -> None:
    assert set(ON_DEADLINE) == set(Phase) - FINAL_PHASES
