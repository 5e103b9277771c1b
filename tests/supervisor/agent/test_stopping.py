# SPDX-License-Identifier: Apache-2.0
"""Who gets which signal, and when, while an attempt is being ended."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

from hypothesis import given
from hypothesis import strategies as st

from supervisor.agent.processes import ProcessId
from supervisor.agent.stopping import STUCK_AFTER_S, Signalling, Stopping

R0, R1, LAUNCHER = ProcessId(10, 1), ProcessId(11, 1), ProcessId(9, 1)
STATES = st.dictionaries(st.sampled_from([R0, R1]), st.sampled_from("RSDT"))


def test_ranks_are_asked_once_and_killed_when_the_grace_is_over() -> None:
    stopping = Stopping(grace_until=5.0)
    assert stopping.due(0.0, {R0: "S", R1: "R"}, [LAUNCHER]) == [Signalling(R0, SIGTERM), Signalling(R1, SIGTERM)]
    assert stopping.due(4.9, {R0: "S", R1: "R"}, [LAUNCHER]) == []
    assert stopping.due(5.0, {R1: "R"}, [LAUNCHER]) == [Signalling(R1, SIGKILL)]
    assert stopping.due(5.1, {R1: "R"}, [LAUNCHER]) == []


def test_a_stopped_rank_is_killed_at_once() -> None:
    assert Stopping(grace_until=5.0).due(0.0, {R0: "T"}, []) == [Signalling(R0, SIGKILL)]


def test_the_launcher_is_killed_only_when_no_rank_lives() -> None:
    stopping = Stopping(grace_until=5.0)
    stopping.due(0.0, {R0: "S"}, [LAUNCHER])
    assert stopping.due(0.1, {}, [LAUNCHER]) == [Signalling(LAUNCHER, SIGKILL)]
    assert stopping.due(0.2, {}, [LAUNCHER]) == []


def test_a_shorter_grace_takes_effect_for_ranks_that_were_asked_already() -> None:
    stopping = Stopping(grace_until=60.0)
    stopping.due(0.0, {R0: "S"}, [])
    stopping.grace_until = 1.0
    assert stopping.next_at(0.5) == 1.0
    assert stopping.due(1.0, {R0: "S"}, []) == [Signalling(R0, SIGKILL)]


def test_a_process_that_survives_sigkill_is_told_after_a_while() -> None:
    stopping = Stopping(grace_until=0.0)
    stopping.due(0.0, {R0: "D"}, [])
    assert stopping.stuck(STUCK_AFTER_S - 0.1) == []
    assert stopping.stuck(STUCK_AFTER_S) == [R0]


@given(
    st.lists(
        st.tuples(st.floats(0.0, 3.0), st.dictionaries(st.sampled_from([R0, R1]), st.sampled_from("RSDT"))), max_size=12
    ),
    st.floats(0.0, 10.0),
)
def test_every_rank_that_lives_on_is_killed_and_each_signal_is_sent_once(
    looks: list[tuple[float, dict[ProcessId, str]]], grace_until: float
) -> None:
    stopping, now = Stopping(grace_until), 0.0
    sent: list[Signalling] = []
    for later, ranks in looks:
        now += later
        sent += stopping.due(now, ranks, [])
    sent += stopping.due(grace_until + now, {R0: "S", R1: "T"}, [])
    assert len(sent) == len(set(sent))
    assert {each.process for each in sent if each.number is SIGKILL} == {R0, R1}
