# SPDX-License-Identifier: Apache-2.0
"""What is written to the journal and the status file is read back as it was; what does not fit is named."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.api import CodecError, decode, decode_union, encode
from supervisor.core.policy import Policy
from supervisor.core.state import RunState
from supervisor.core.values import BatchRange, Checkpoint, Phase, Power
from tests.supervisor.core.journeys import PLACES, Journey, happenings

DECISIONS: dict[str, type[d.Decision]] = {
    cls.__name__: cls
    for cls in (d.Launch, d.Stop, d.KeepEvidence, d.Finish, d.Diagnose, d.Probe, d.Cordon, d.Notify, d.Release)
}


@dataclass(frozen=True, slots=True)
class Sample:
    loss: float | None = None
    counts: Mapping[str, int] | None = None
    flag: bool = False
    raw: Any = None
    pair: tuple[int, str] = (1, "a")


def through_json(value: object) -> Any:
    return json.loads(json.dumps(encode(value), allow_nan=False))


@pytest.mark.parametrize("place", PLACES)
def test_state_of_every_place_and_all_it_took_round_trips(place: str) -> None:
    journey = PLACES[place]()
    assert decode(RunState, through_json(journey.state)) == journey.state
    for event in (*journey.journal, *happenings(journey).values()):
        assert decode_union(e.EVENTS, through_json(event)) == event
    for decision in journey.all_made:
        assert decode_union(DECISIONS, through_json(decision)) == decision


MEMBERS = [*e.EVENTS.values(), *DECISIONS.values(), RunState, Policy]


def test_every_member_of_the_unions_is_tried() -> None:
    assert set(e.EVENTS.values()) == set(e.Event.__args__)
    assert set(DECISIONS.values()) == set(d.Decision.__args__)


FLOATS = st.floats(allow_nan=False)
st.register_type_strategy(float, FLOATS)
RANGES = st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda pair: BatchRange(min(pair), max(pair)))
st.register_type_strategy(BatchRange, RANGES)


@pytest.mark.parametrize("member", MEMBERS, ids=lambda cls: cls.__name__)
def test_any_value_of_the_type_round_trips(member: type[object]) -> None:
    @settings(max_examples=15, deadline=None, database=None)
    @given(st.from_type(member))
    def check(value: object) -> None:
        assert decode(member, through_json(value)) == value

    check()


@pytest.mark.parametrize("number", [math.inf, -math.inf, 1.5])
def test_every_number_is_valid_json(number: float) -> None:
    assert decode(Sample, through_json(Sample(loss=number))).loss == number


def test_nan_is_read_back_as_nan() -> None:
    loss = decode(Sample, through_json(Sample(loss=math.nan))).loss
    assert loss is not None and math.isnan(loss)


def test_mapping_and_any_round_trip() -> None:
    sample = Sample(counts={"a": 1}, raw=[1, {"b": None}])
    assert decode(Sample, through_json(sample)) == sample


def test_powers_are_written_in_a_fixed_order() -> None:
    assert encode(frozenset(Power)) == ["isolate", "relaunch", "rollback", "stop"]


def test_key_of_a_newer_version_is_ignored_and_a_missing_one_takes_its_default() -> None:
    assert decode(Sample, {"type": "Sample", "invented": 1}) == Sample()


@pytest.mark.parametrize(
    ("expected", "raw", "message"),
    [
        (Sample, [], "Sample: expected an object, got list"),
        (Sample, {"loss": "x"}, r"Sample\.loss: expected float, got 'x'"),
        (Sample, {"loss": True}, r"Sample\.loss: expected float, got True"),
        (Sample, {"flag": 1}, r"Sample\.flag: expected bool, got 1"),
        (Sample, {"counts": 3}, r"Sample\.counts: expected an object, got int"),
        (Sample, {"counts": {"a": True}}, r"Sample\.counts\.a: expected int, got True"),
        (Sample, {"pair": 3}, r"Sample\.pair: expected a list, got int"),
        (Sample, {"pair": [1]}, r"Sample\.pair: expected 2 items, got 1"),
        (Sample, {"pair": [1, 2]}, r"Sample\.pair\[1\]: expected str, got 2"),
        (Checkpoint, {"step": 1}, "Checkpoint: .*attempt"),
        (BatchRange, {"first": 3, "last": 1}, "BatchRange: batch range 3-1: expected 0 <= first <= last"),
        (e.LossSpiked, {"kind": "no such kind"}, r"LossSpiked\.kind: 'no such kind' is not a FailureKind"),
    ],
)
def test_value_that_does_not_fit_is_named(expected: type[object], raw: object, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode(expected, raw)


def test_unknown_kind_is_named_with_the_known_ones() -> None:
    with pytest.raises(CodecError, match="unknown type 'Moved'; known types: AttemptEnded"):
        decode_union(e.EVENTS, {"type": "Moved"})
    with pytest.raises(CodecError, match="expected an object with a key 'type', got list"):
        decode_union(e.EVENTS, [])


@pytest.mark.parametrize("pending", [{"type": "Cordon", "node": "n", "why": ""}, {"attempt": 1}, 3])
def test_union_inside_a_value_takes_its_members_only(pending: object) -> None:
    raw = through_json(Journey().submit().state)
    with pytest.raises(CodecError, match=r"RunState\.pending: expected one of Diagnose, Finish, Launch, Probe, Stop"):
        decode(RunState, {**raw, "pending": pending})


def test_own_field_does_not_hide_the_name_of_the_class() -> None:
    spiked = PLACES["training"]().spike(100).journal[-1]
    assert through_json(spiked)["type"] == "LossSpiked" and through_json(spiked)["kind"] == "loss spike"


def test_enum_is_written_by_its_value() -> None:
    assert encode(Phase.TRAINING) == "TRAINING"
