# SPDX-License-Identifier: Apache-2.0
"""Which attempt a damaged record was of, and what is written in its place once nothing of it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.agent import folders
from supervisor.agent.api import StopAttempt
from supervisor.agent.folders import AgentFolders
from supervisor.agent.record import RecordError
from supervisor.agent.unreadable import UnreadableAttempt


@pytest.fixture
def where(tmp_path: Path) -> AgentFolders:
    made = AgentFolders(tmp_path, "unreadable", "node-0")
    made.make()
    return made


def unreadable(where: AgentFolders) -> UnreadableAttempt:
    return UnreadableAttempt(where, {}, f"{where.record} is damaged")


@pytest.mark.parametrize(
    ("content", "folders_of", "exits", "attempt"),
    [
        (b'{"attempt": 3, "spec"', (1, 2, 3, 4), (), 3),
        (b'{"attempt": 9, "spec"', (1, 2), (), 2),
        (b"\0\0\0", (1, 2), (), 2),
        (b"\0\0\0", (), ("attempt-5", "attempt-12", "standby-77-1"), 12),
        (b'{"attempt": 2', (1, 2), ("attempt-1",), 2),
    ],
)
def test_the_attempt_is_told_by_what_else_it_left_and_rather_too_high_than_too_low(
    where: AgentFolders, content: bytes, folders_of: tuple[int, ...], exits: tuple[str, ...], attempt: int
) -> None:
    where.record.write_bytes(content)
    for number in folders_of:
        (where.run_folder / "attempts" / f"{number:04d}").mkdir(parents=True)
    for name in exits:
        where.exit_file(name).touch()
    aside, written = unreadable(where).set_aside()
    assert aside.read_bytes() == content and not where.record.exists()
    assert written is not None and written.ended is not None
    assert (written.attempt, written.ended.attempt, written.ended.by_us) == (attempt, attempt, False)


def test_without_any_trace_of_an_attempt_nothing_is_written_in_its_place(where: AgentFolders) -> None:
    where.record.mkdir()
    aside, written = unreadable(where).set_aside()
    assert aside.is_dir() and written is None


def test_a_record_that_cannot_be_moved_is_an_error_with_the_next_step(where: AgentFolders) -> None:
    where.record.touch()
    where.record.with_name("attempt.json.damaged").mkdir()
    with pytest.raises(RecordError, match=r"cannot be moved to .*: remove both"):
        unreadable(where).set_aside()


def test_a_stop_of_an_older_attempt_is_not_meant_for_the_one_that_lives(where: AgentFolders) -> None:
    rank_folder = folders.make_rank_folder(folders.shared_root({}), where, 2)
    found = unreadable(where)
    assert [found.is_meant_by(StopAttempt(number, 0.0, False, 1, "")) for number in (1, 2, 3)] == [False, True, True]
    folders.remove_rank_folder(rank_folder)
