# SPDX-License-Identifier: Apache-2.0
"""The loss of a run with what happened to it, ready to be drawn. Pure.

Long runs are thinned out: of several neighbouring steps the one with the highest loss stays, so that no spike is lost.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.controller.api import JournalRecord
from supervisor.controller.steps_file import StepLine
from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.api import BatchRange, Policy, RunState, advance

MOST_POINTS = 20_000
USUAL_SHARE = 0.97
"""Of the losses, together with the first one."""


class Point(NamedTuple):
    at: float
    step: int
    loss: float
    attempt: int
    position: int | None


class MarkKind(str, enum.Enum):
    FAILURE = "failure"
    ROLLBACK = "rollback"
    CHECKPOINT = "checkpoint"
    SKIP = "skipped batches"
    TAKEOVER = "new supervisor"


@dataclass(frozen=True, slots=True)
class Mark:
    kind: MarkKind
    at: float
    step: int | None
    text: str = ""
    to_step: int | None = None
    """Of a rollback: where it went back to."""


@dataclass(frozen=True, slots=True)
class Curve:
    run: str
    began_at: float
    points: tuple[Point, ...]
    """In the order of training, which is the order of time."""
    marks: tuple[Mark, ...]

    @property
    def attempts(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(point.attempt for point in self.points))

    def of(self, kind: MarkKind) -> tuple[Mark, ...]:
        return tuple(mark for mark in self.marks if mark.kind is kind)


def read(rows: Iterable[StepLine], records: Iterable[JournalRecord]) -> Curve:
    """The curve of the steps in `rows` with the marks that the journal gives."""
    points: list[Point] = []
    for row in rows:
        if row.loss is not None and math.isfinite(row.loss):
            points.append(Point(row.at, row.step, row.loss, row.attempt, row.position))
            if len(points) >= 2 * MOST_POINTS:
                points = _thinned(points)
    marks: list[Mark] = []
    skips: dict[int, tuple[BatchRange, ...]] = {}
    state: RunState | None = None
    policy = Policy()
    for record in records:
        policy = record.policy or policy
        if record.event is not None:
            before = state
            state, decided = advance(before, record.event, policy)
            marks += _marks(before, record.event, state, decided)
            skips.update((each.attempt, each.skipped) for each in decided if isinstance(each, d.Launch))
    began_at = points[0].at if state is None and points else 0.0 if state is None else state.submitted_at
    marks += _skips(points, skips)
    return Curve("" if state is None else state.run, began_at, tuple(points), tuple(marks))


def usual_range(losses: Sequence[float]) -> tuple[float, float]:
    """The range in which nearly all of the losses lie: a wild spike is beyond it, or nothing else could be seen."""
    ordered = sorted(losses)
    low, high = ordered[0], ordered[-1]
    usual = max(ordered[int(USUAL_SHARE * (len(ordered) - 1))], losses[0])
    wide = 2.0 * (usual - low)
    return (low, low + wide) if high - low > wide > 0.0 else (low, high)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Of each two neighbours of one attempt the one with the higher loss."""
    kept: list[Point] = []
    index = 0
    while index < len(points):
        pair = points[index : index + 2]
        if len(pair) == 2 and pair[0].attempt != pair[1].attempt:
            pair = pair[:1]
        kept.append(max(pair, key=lambda point: point.loss))
        index += len(pair)
    return kept


def _marks(before: RunState | None, event: e.Event, after: RunState, decided: tuple[d.Decision, ...]) -> Iterable[Mark]:
    if isinstance(event, e.CheckpointCommitted):
        yield Mark(MarkKind.CHECKPOINT, event.at, event.checkpoint.step)
    if isinstance(event, e.ControllerReturned):
        yield Mark(MarkKind.TAKEOVER, event.at, after.step, "new supervisor")
    if before is None:
        return
    failure = after.failure
    if failure is not None and after.incident > before.incident:
        yield Mark(MarkKind.FAILURE, failure.noticed_at, failure.step, failure.kind.value)
    if after.rollbacks > before.rollbacks:
        yield _rollback(event.at, before.step, after.relaunch or _launch(decided))
    elif isinstance(event, e.OrderGiven) and after.after_stop is not None and after.after_stop.launch is not None:
        launch = after.after_stop.launch
        if launch.resume is not None or launch.from_nothing:
            yield _rollback(event.at, before.step, launch)


def _launch(decided: tuple[d.Decision, ...]) -> d.Launch | None:
    return next((each for each in decided if isinstance(each, d.Launch)), None)


def _rollback(at: float, step: int | None, launch: d.Launch | None) -> Mark:
    to_step = 0 if launch is None or launch.resume is None else launch.resume.step
    return Mark(MarkKind.ROLLBACK, at, step, f"back to step {to_step}", to_step)


def _skips(points: Sequence[Point], skips: dict[int, tuple[BatchRange, ...]]) -> Iterable[Mark]:
    """Where an attempt went over batches that it was to leave out."""
    for one, next_one in itertools.pairwise(points):
        if one.attempt != next_one.attempt or one.position is None or next_one.position is None:
            continue
        for span in skips.get(one.attempt, ()):
            if one.position < span.first and next_one.position > span.last:
                yield Mark(MarkKind.SKIP, next_one.at, next_one.step, f"batches {span.first}-{span.last} left out")
