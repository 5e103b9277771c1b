# SPDX-License-Identifier: Apache-2.0
"""The journal keeps what was written, drops what was torn, and replays to the same state."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.controller.api import ControllerError, JournalRecord
from supervisor.controller.journal import Journal, JournalFullError, read_journal, replay
from supervisor.core.api import Phase, Policy, RunState, advance, events

LIFE: tuple[events.Event, ...] = (
    events.RunSubmitted(1.0, "demo", 1),
    events.AttemptStarted(2.0, 1, ("node-0",)),
    events.ProgressSampled(3.0, 1, 1, 1),
    events.RankFailed(9.0, 1, 1, "node-0", -9, 8.9),
    events.AttemptEnded(9.5, 1, succeeded=False),
)


def written(path: Path, life: tuple[events.Event, ...] = LIFE) -> RunState:
    """Advance a run over `life` and journal it; the state that it ends in."""
    journal, state = Journal(path), None
    journal.append(JournalRecord(0.0, policy=Policy()))
    for event in life:
        state, made = advance(state, event, Policy())
        journal.append(JournalRecord(event.at, event, made))
    journal.close()
    assert state is not None
    return state


def test_replay_of_the_journal_gives_the_state(tmp_path: Path) -> None:
    state = written(tmp_path / "journal")
    assert replay(read_journal(tmp_path / "journal")) == (state, Policy())
    assert state.phase is Phase.DIAGNOSING


def test_decisions_are_kept_for_the_story(tmp_path: Path) -> None:
    written(tmp_path / "journal")
    kinds = [type(made).__name__ for record in read_journal(tmp_path / "journal") for made in record.decisions]
    assert kinds == ["Launch", "Notify", "Stop", "Diagnose"]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(min_value=1, max_value=400))
def test_a_journal_that_was_cut_anywhere_gives_a_prefix_and_takes_new_lines(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("torn") / "journal"
    written(path)
    whole = path.read_bytes()
    before = list(read_journal(path))
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    kept = list(read_journal(path))
    assert kept == before[: len(kept)]
    journal = Journal(path)
    journal.append(JournalRecord(20.0, policy=Policy(backoff_s=1.0)))
    journal.close()
    assert list(read_journal(path)) == [*kept, JournalRecord(20.0, policy=Policy(backoff_s=1.0))]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + lines[1])
    with pytest.raises(ControllerError, match="journal:2 is damaged"):
        list(read_journal(path))


def fill(journal: Journal) -> None:
    for _ in range(10_000):
        journal.append(JournalRecord(1.0, policy=Policy()))


def test_a_line_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, full_disk: Path) -> None:
    path = full_disk / "journal"
    journal = Journal(path)
    journal.append(JournalRecord(1.0, policy=Policy()))
    whole = path.read_bytes()
    with pytest.raises(JournalFullError, match="No space left"):
        fill(journal)
    assert path.read_bytes().endswith(b"\n")
    assert path.read_bytes().startswith(whole)
    assert next(iter(read_journal(path))) == JournalRecord(1.0, policy=Policy())
