# SPDX-License-Identifier: Apache-2.0
"""The loss of a run with its failures, rollbacks, checkpoints and skipped batches, as text and as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.controller import curve, plot, sparkline
from supervisor.controller.curve import Curve, MarkKind
from supervisor.controller.steps_file import StepLine
from supervisor.core import events as e
from supervisor.core.api import OrderKind
from supervisor.errors import UsageError
from tests.supervisor.controller import made_up

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def eventful() -> Curve:
    run = made_up.eventful()
    return curve.read(run.rows, run.journal.records)


def test_every_step_is_a_point_of_its_attempt(eventful: Curve) -> None:
    assert eventful.attempts == (1, 2, 3, 4, 5)
    assert len(eventful.points) == 260 + 270 + 255 + 155 + 700


def test_failures_are_marked_where_they_happened(eventful: Curve) -> None:
    failures = [(mark.step, mark.text) for mark in eventful.of(MarkKind.FAILURE)]
    assert failures == [(260, "exit"), (470, "hang"), (640, "loss spike"), (640, "loss spike")]


def test_rollbacks_are_marked_with_where_they_went_back_to(eventful: Curve) -> None:
    assert [(mark.step, mark.to_step) for mark in eventful.of(MarkKind.ROLLBACK)] == [(655, 500), (655, 500)]


def test_skipped_batches_are_marked_where_training_went_over_them(eventful: Curve) -> None:
    (skip,) = eventful.of(MarkKind.SKIP)
    assert skip.step == made_up.SKIPPED.first
    assert skip.text == "batches 640-839 left out"


def test_a_rollback_that_a_person_ordered_is_marked_too() -> None:
    run = made_up.Training()
    run.start(None)
    run.train(1, 250)
    run.journal.hear(e.OrderGiven(run.at, OrderKind.ROLLBACK, "ann@login", step=150))
    marks = curve.read(run.rows, run.journal.records).of(MarkKind.ROLLBACK)
    assert [mark.to_step for mark in marks] == [100]


def test_losses_that_are_no_number_are_left_out() -> None:
    rows = [
        StepLine(1, step, step, float(step), loss, None, 1) for step, loss in enumerate([1.0, None, float("nan"), 2.0])
    ]
    assert [point.step for point in curve.read(rows, ()).points] == [0, 3]


def test_a_long_run_is_thinned_out_without_losing_a_spike() -> None:
    rows = (StepLine(1, step, step, float(step), 9.0 if step == 31_111 else 1.0, None, 1) for step in range(100_000))
    points = curve.read(rows, ()).points
    assert len(points) <= 2 * curve.MOST_POINTS
    assert 31_111 in {point.step for point in points}
    assert [point.step for point in points] == sorted(point.step for point in points)


def test_the_text_line_is_ascii_unless_unicode_is_wanted(eventful: Curve) -> None:
    plain = sparkline.lines(eventful, unicode=False)
    assert all(line.isascii() and len(line) <= 100 for line in plain)
    assert plain[-1] == "x failure  < rollback"
    rich = sparkline.lines(eventful, unicode=True)
    assert "\u2588" in rich[1] and "\u21a9" in rich[2]


def test_the_marks_stand_below_the_place_where_they_happened(eventful: Curve) -> None:
    _, line, marks, _ = sparkline.lines(eventful, unicode=False)
    columns = [index for index, sign in enumerate(marks) if sign == "<"]
    assert len(columns) == 2
    assert all("#" in line[column - 2 : column + 1] for column in columns)


def test_a_flat_loss_and_a_single_step_can_be_shown() -> None:
    rows = [StepLine(1, 1, 1, 1.0, 2.5, None, 1)]
    title, line = sparkline.lines(curve.read(rows, ()), unicode=False)
    assert "loss 2.5 to 2.5" in title
    assert line == "_"


@pytest.mark.parametrize("by", ["time", "step"])
def test_the_picture_is_a_png(eventful: Curve, tmp_path: Path, by: str) -> None:
    path = tmp_path / "loss.png"
    plot.write(eventful, path, by=by)
    assert path.read_bytes().startswith(PNG)


def test_a_wild_spike_does_not_flatten_the_rest() -> None:
    falling = [3.0 - 0.001 * number for number in range(1000)]
    low, high = curve.usual_range([*falling, 1e6])
    assert low == falling[-1] and 3.0 < high < 10.0
    assert curve.usual_range(falling) == (falling[-1], 3.0)
    assert curve.usual_range([2.0, 2.0]) == (2.0, 2.0)


def test_a_new_supervisor_is_marked() -> None:
    run = made_up.Training()
    run.start(None)
    run.train(1, 50)
    run.journal.hear(e.ControllerReturned(run.at))
    drawn = curve.read(run.rows, run.journal.records)
    assert [mark.step for mark in drawn.of(MarkKind.TAKEOVER)] == [50]


def test_a_picture_that_cannot_be_written_is_an_error_that_names_it(eventful: Curve, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the picture"):
        plot.write(eventful, tmp_path / "no folder" / "loss.png")
    with pytest.raises(UsageError, match="cannot write the picture"):
        plot.write(eventful, tmp_path / "loss.nonsense")
