# SPDX-License-Identifier: Apache-2.0
"""What a controller that takes a run over hands on to its parts."""

from __future__ import annotations

from supervisor.controller.steps_file import StepLine
from supervisor.wiring import LOSSES_JUDGED_AGAIN, known_losses


def row(attempt: int, step: int, loss: float) -> StepLine:
    return StepLine(attempt, step, step - 1, float(step), loss, None, 1)


def test_a_step_that_was_trained_again_counts_as_the_last_attempt_had_it() -> None:
    first = [row(1, step, 9.0 if step > 140 else 2.0) for step in range(1, 151)]
    again = [row(2, step, 2.0) for step in range(101, 146)]
    known = known_losses([*first, *again])
    assert [each.step for each in known] == list(range(1, 146))
    assert {each.loss for each in known} == {2.0}


def test_rows_that_an_agent_told_twice_count_once() -> None:
    rows = [row(1, step, 2.0) for step in range(1, 11)]
    assert [each.step for each in known_losses([*rows, *rows[4:]])] == list(range(1, 11))


def test_of_a_long_run_only_the_newest_losses_are_judged_again() -> None:
    known = known_losses(row(1, step, 2.0) for step in range(1, LOSSES_JUDGED_AGAIN + 11))
    assert (known[0].step, len(known)) == (11, LOSSES_JUDGED_AGAIN)
