# SPDX-License-Identifier: Apache-2.0
"""The file of steps keeps what was written and reads past whatever else is in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.agent.api import StepRow
from supervisor.controller.steps_file import StepsFile, read_steps
from supervisor.controller.throughput import Throughput

ROWS = (StepRow(1, 0, 10.0, 2.5, None, 7), StepRow(2, None, 10.1, None, 1.5, 7))


def written(path: Path) -> None:
    file = StepsFile(path)
    file.append(3, ROWS)
    file.close()


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    written(tmp_path / "steps.csv")
    read = list(read_steps(tmp_path / "steps.csv"))
    assert [(row.attempt, *row[1:]) for row in read] == [
        (3, 1, 0, 10.0, 2.5, None, 7),
        (3, 2, None, 10.1, None, 1.5, 7),
    ]


@given(rubbish=st.binary(max_size=300))
def test_rubbish_between_the_rows_costs_no_other_row(rubbish: bytes, tmp_path_factory: object) -> None:
    path = tmp_path_factory.mktemp("steps") / "steps.csv"  # type: ignore[attr-defined]
    written(path)
    path.write_bytes(path.read_bytes() + rubbish + b"\n")
    written(path)
    steps = [row.step for row in read_steps(path)]
    assert steps[:2] == [1, 2]
    assert steps[-2:] == [1, 2]


def test_step_times_of_rows_that_came_in_bursts_are_means() -> None:
    throughput = Throughput()
    for burst in range(5):
        for step in range(3):
            throughput.add(StepRow(burst * 3 + step, None, burst * 0.9, None, None, 0), 1)
    assert throughput.step_s is not None
    assert 0.2 < throughput.step_s < 0.3


def test_rows_that_find_no_room_are_counted_and_closing_is_no_error(full_disk: Path) -> None:
    file = StepsFile(full_disk / "steps.csv")
    file.append(1, ROWS)
    with pytest.raises(OSError, match="No space left"):
        (full_disk / "ballast").write_bytes(bytes(2**21))
    for _ in range(200):
        file.append(1, ROWS * 10)
    assert file.lost_rows > 0
    file.close()
    assert len(list(read_steps(full_disk / "steps.csv"))) >= len(ROWS)
