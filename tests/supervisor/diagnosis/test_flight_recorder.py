# SPDX-License-Identifier: Apache-2.0
"""Flight recorders of all ranks side by side name the rank that did not join, or the one that called something else."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.flight_recorder import Call, GroupRecord, Record, absence, mismatch, parse_record

HANGS = Path(__file__).parents[2] / "data" / "hangs"
"""Dumps that torch 2.13 with gloo wrote while its ranks hung."""
REDUCE = Call("all_reduce", "[[8]]", "['Float']")


def recorded(case: str) -> dict[int, Record]:
    found = {}
    for path in (HANGS / case).glob("flight-recorder-rank-*.json"):
        record = parse_record(path.read_bytes())
        assert record is not None
        found[int(path.stem.rpartition("-")[2])] = record
    return found


def at(enqueued: int, completed: int = 0, call: Call = REDUCE) -> GroupRecord:
    return GroupRecord(enqueued, completed, dict.fromkeys(range(1, enqueued + 1), call))


def test_the_rank_that_skipped_a_collective_is_absent_in_a_real_dump() -> None:
    records = recorded("skipped")
    found = absence(records)
    assert mismatch(records) is None and found is not None
    assert (found.ranks, found.enqueued, found.waited_for) == ((1,), 3, 4)
    assert str(found) == (
        "last enqueued is collective 3 of group gloo/default_pg, the others wait in 4 (all_reduce[[8]])"
    )


def test_of_ranks_that_wait_in_a_chain_of_groups_the_last_is_absent_in_a_real_dump() -> None:
    found = absence(recorded("mesh"))
    assert found is not None and found.ranks == (3,)


def test_different_collectives_under_one_number_are_a_mismatch_in_a_real_dump() -> None:
    records = recorded("mismatch")
    found = mismatch(records)
    assert found is not None and absence(records) is None
    assert (found.sequence, found.calls[0].operation, found.calls[1].operation) == (4, "all_reduce", "broadcast")
    assert found.odd_rank is None


@pytest.mark.parametrize(
    ("numbers", "absent"),
    [
        pytest.param({0: 5, 1: 5}, None, id="all are equally far"),
        pytest.param({0: 5, 1: 4}, (1,), id="one is behind"),
        pytest.param({0: 5, 1: 4, 2: 4, 3: 5}, (1, 2), id="two are behind"),
        pytest.param({0: 7, 1: 6, 2: 5}, (2,), id="the last of a row counts"),
        pytest.param({0: 5}, None, id="nobody to compare with"),
    ],
)
def test_smallest_number_is_absent(numbers: dict[int, int], absent: tuple[int, ...] | None) -> None:
    found = absence({rank: {"nccl/default_pg": at(number)} for rank, number in numbers.items()})
    assert (None if found is None else found.ranks) == absent


def test_ranks_that_wait_for_each_other_in_a_circle_leave_nobody_to_name() -> None:
    assert absence({0: {"a": at(5), "b": at(4)}, 1: {"a": at(4), "b": at(5)}}) is None


@pytest.mark.parametrize(
    ("calls", "is_mismatch", "odd"),
    [
        pytest.param([REDUCE, REDUCE, REDUCE], False, None, id="equal"),
        pytest.param([REDUCE, Call("barrier"), REDUCE], True, 1, id="another operation"),
        pytest.param([REDUCE, REDUCE, Call("all_reduce", "[[9]]", "['Float']")], True, 2, id="another size"),
        pytest.param([REDUCE, Call("all_reduce", "[[8]]", "['Half']"), REDUCE], True, 1, id="another type"),
        pytest.param([Call("alltoall", "[[8]]"), Call("alltoall", "[[9]]")], False, None, id="sizes may differ"),
        pytest.param([Call("barrier"), REDUCE], True, None, id="two ranks have no majority"),
    ],
)
def test_calls_of_one_number_must_fit(calls: list[Call], is_mismatch: bool, odd: int | None) -> None:
    found = mismatch({rank: {"nccl/default_pg": at(3, 2, call)} for rank, call in enumerate(calls)})
    assert (found is not None) == is_mismatch
    assert (None if found is None else found.odd_rank) == odd


def test_collectives_that_all_have_completed_are_not_compared() -> None:
    assert mismatch({0: {"g": at(3, 3)}, 1: {"g": at(3, 3, Call("barrier"))}}) is None


DUMP = {
    "entries": [
        {
            "pg_id": 1,
            "process_group": ["7", "tp"],
            "profiling_name": "nccl:all_reduce",
            "collective_seq_id": 9,
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "is_p2p": False,
        },
        {"is_p2p": True, "profiling_name": "nccl:send 0->1"},
    ],
    "pg_status": {"1": {"last_enqueued_collective": 10, "last_completed_collective": 8}},
}


def test_the_pickle_that_nccl_writes_is_read_like_the_json() -> None:
    expected = {"nccl/7": GroupRecord(10, 8, {9: Call("all_reduce", "[[4]]", "['Float']")})}
    assert parse_record(pickle.dumps(DUMP, protocol=2)) == expected
    assert parse_record(json.dumps(DUMP).encode()) == expected


def test_a_dump_that_is_cut_short_is_none() -> None:
    whole = pickle.dumps(DUMP, protocol=2)
    assert [each for each in range(0, len(whole), 7) if parse_record(whole[:each]) is not None] == []


def test_a_group_without_status_counts_by_its_newest_entry() -> None:
    record = parse_record(json.dumps({**DUMP, "pg_status": {}}).encode())
    assert record is not None and record["nccl/7"].enqueued == 9


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("this must never be called",))


def test_a_pickle_that_would_call_something_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_record(pickle.dumps(Trap(), protocol=2)) is None
    assert capsys.readouterr().out == ""


@given(
    st.one_of(st.binary(max_size=200), st.sampled_from([b"{", b"{}", b'{"entries": [3]}', b'{"entries": {"a": 1}}']))
)
@settings(max_examples=200, deadline=None)
def test_any_content_is_a_record_or_none(content: bytes) -> None:
    assert parse_record(content) is None or parse_record(content) == {}


def hung(width: int, depth: int, stops: int, after: int) -> dict[int, Record]:
    """Recorders of a mesh whose ranks reduce over rows, columns and all in turn, when rank `stops` has ended early."""
    ranks = range(width * depth)
    names = {rank: (f"nccl/row{rank // width}", f"nccl/column{rank % width}", "nccl/default_pg") * 4 for rank in ranks}
    done = dict.fromkeys(ranks, 0)
    numbers: dict[int, dict[str, int]] = {rank: {} for rank in ranks}

    def enqueue(rank: int) -> None:
        group = names[rank][done[rank]]
        numbers[rank][group] = numbers[rank].get(group, 0) + 1
        done[rank] += 1

    def may_go_on(rank: int) -> bool:
        """The collective that it enqueued last has been enqueued by all members of its group."""
        if done[rank] == 0:
            return True
        group = names[rank][done[rank] - 1]
        members = [each for each in ranks if names[each][done[rank] - 1] == group]
        return all(numbers[each].get(group, 0) >= numbers[rank][group] for each in members)

    moved = True
    while moved:
        moved = False
        for rank in ranks:
            is_at_end = done[rank] == (after if rank == stops else len(names[rank]))
            if not is_at_end and may_go_on(rank):
                enqueue(rank)
                moved = True
    return {
        rank: {group: GroupRecord(number, number - 1) for group, number in groups.items()}
        for rank, groups in numbers.items()
    }


@given(st.integers(2, 4), st.integers(2, 4), st.data())
@settings(max_examples=100, deadline=None)
def test_in_any_mesh_the_rank_that_stopped_is_named_once_all_groups_have_been_used(
    width: int, depth: int, data: st.DataObject
) -> None:
    stops = data.draw(st.integers(0, width * depth - 1))
    after = data.draw(st.integers(3, 11))
    found = absence(hung(width, depth, stops, after))
    assert found is not None and found.ranks == (stops,)
