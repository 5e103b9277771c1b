# SPDX-License-Identifier: Apache-2.0
"""Draws the loss of a run with its failures, rollbacks, checkpoints and skipped batches as a picture.

Needs matplotlib (extra `plot`), which is imported here and only when a picture is wanted; no window is ever opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.controller.curve import Curve, Mark, MarkKind, Point, usual_range
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ATTEMPT_COLOURS = ("#1f6fb4", "#e08a1e", "#2e9d62", "#8a63b8", "#8c5a45", "#c95fa6", "#6f7a86", "#a9a427")
_FAILURE, _ROLLBACK, _SKIP, _CHECKPOINT, _QUIET = "#c62f2f", "#3b3b3b", "#7a3fa0", "#4f7f3f", "#777777"
_LATE = 0.85
"""Of the axis: labels of what lies beyond it stand on its left."""
_MOST_LABELS = 14
_ROWS = 3
_MOST_LEGEND = 8


def write(curve: Curve, path: Path, *, by: str = "time") -> None:
    """Write the picture of `curve` (which has points) to `path`, against `time` or `step`; raises UsageError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "a picture needs matplotlib; run `pip install 'pretraining-supervisor[plot]'` (the text above does not)"
        ) from None
    figure = Figure(figsize=(11, 6.2 if by == "time" else 5.2), dpi=130)
    figure.subplots_adjust(left=0.06, right=0.985, top=0.93, bottom=0.1, hspace=0.07)
    if by == "time":
        _against_time(figure, curve)
    else:
        _against_step(figure, curve)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write the picture {path}: {error}; name another file, as in loss.png") from error


def _against_time(figure: Figure, curve: Curve) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    unit, seconds = _time_unit(curve.points[-1].at - curve.began_at)

    def place(at: float) -> float:
        return (at - curve.began_at) / seconds

    _draw_losses(upper, curve, lambda point: place(point.at))
    _label_failures(upper, [(place(mark.at), mark) for mark in curve.of(MarkKind.FAILURE)])
    _label_skips(upper, [(place(mark.at), mark) for mark in curve.of(MarkKind.SKIP)])
    for attempt, colour in _coloured(curve):
        points = [point for point in curve.points if point.attempt == attempt]
        lower.plot([place(point.at) for point in points], [point.step for point in points], color=colour, lw=1.6)
    takeovers = [(place(mark.at), mark.text) for mark in curve.of(MarkKind.TAKEOVER)]
    for axes in (upper, lower):
        for x, _ in takeovers:
            axes.axvline(x, color=_QUIET, lw=0.8, ls=(0, (1, 2)))
    _label_at_edge(upper, takeovers, _QUIET, is_top=True, below=_ROWS + 1)
    commits = curve.of(MarkKind.CHECKPOINT)
    lower.plot(
        [place(mark.at) for mark in commits],
        [mark.step for mark in commits if mark.step is not None],
        **_dots(_CHECKPOINT, "checkpoint"),
    )
    for mark in curve.of(MarkKind.ROLLBACK):
        if mark.step is not None and mark.to_step is not None:
            x = place(mark.at)
            lower.annotate("", (x, mark.to_step), (x, mark.step), arrowprops=_arrow())
    rollbacks = [(place(mark.at), mark.text) for mark in curve.of(MarkKind.ROLLBACK)]
    _label_at_edge(lower, rollbacks, _ROLLBACK, is_top=False)
    for mark in curve.of(MarkKind.FAILURE):
        lower.axvline(place(mark.at), color=_FAILURE, lw=0.8, ls=(0, (3, 3)), alpha=0.7)
    lower.set_xlabel(f"{unit} since the run was submitted")
    lower.set_ylabel("step")
    lower.grid(alpha=0.25)
    _quiet(lower)
    if commits:
        lower.legend(loc="upper left", fontsize=8, frameon=False)
    _finish(upper, curve)


def _against_step(figure: Figure, curve: Curve) -> None:
    axes = figure.subplots()
    _draw_losses(axes, curve, lambda point: float(point.step))
    _label_failures(axes, [(float(mark.step), mark) for mark in curve.of(MarkKind.FAILURE) if mark.step is not None])
    _label_skips(axes, [(float(mark.step), mark) for mark in curve.of(MarkKind.SKIP) if mark.step is not None])
    bottom, top = axes.get_ylim()
    if curve.of(MarkKind.ROLLBACK):  # room for the arrows below the losses
        bottom -= 0.05 * min(_ROWS, len(curve.of(MarkKind.ROLLBACK))) * (top - bottom)
        axes.set_ylim(bottom, top)
    steps = sorted({mark.step for mark in curve.of(MarkKind.CHECKPOINT) if mark.step is not None})
    if steps:
        axes.plot(steps, [bottom] * len(steps), clip_on=False, **_dots(_CHECKPOINT, "checkpoint"))
    for number, mark in enumerate(curve.of(MarkKind.ROLLBACK)):
        if mark.step is not None and mark.to_step is not None:
            height = bottom + (0.04 + 0.045 * (number % _ROWS)) * (top - bottom)
            axes.annotate("", (mark.to_step, height), (mark.step, height), arrowprops=_arrow())
            text = axes.annotate(
                f"{mark.text} ", (mark.to_step, height), color=_ROLLBACK, fontsize=8, ha="right", va="center"
            )
            text.set_in_layout(False)
    axes.set_xlabel("step")
    _finish(axes, curve)


def _draw_losses(axes: Axes, curve: Curve, place: Callable[[Point], float]) -> None:
    for number, (attempt, colour) in enumerate(_coloured(curve)):
        points = [point for point in curve.points if point.attempt == attempt]
        label = f"attempt {attempt}" if number < _MOST_LEGEND else None
        axes.plot([place(p) for p in points], [p.loss for p in points], color=colour, lw=1.2, label=label)
    low, usual = usual_range([point.loss for point in curve.points])
    margin = 0.06 * (usual - low) or 1.0
    high = usual + 3.0 * margin
    axes.set_ylim(low - margin, high)
    clipped = [point for point in curve.points if point.loss > high]
    axes.plot(
        [place(p) for p in clipped], [high] * len(clipped), ls="", marker="^", ms=4, color=_FAILURE, clip_on=False
    )


def _label_failures(axes: Axes, placed: Sequence[tuple[float, Mark]]) -> None:
    for x, _ in placed:
        axes.axvline(x, color=_FAILURE, lw=0.8, ls=(0, (3, 3)), alpha=0.7)
    numbered = [(x, f"{number} {mark.text}") for number, (x, mark) in enumerate(placed, 1)]
    _label_at_edge(axes, numbered, _FAILURE, is_top=True)


def _label_skips(axes: Axes, placed: Sequence[tuple[float, Mark]]) -> None:
    for x, _ in placed:
        axes.axvline(x, color=_SKIP, lw=1.4, alpha=0.8)
    _label_at_edge(axes, [(x, mark.text) for x, mark in placed], _SKIP, is_top=True, below=_ROWS)


def _label_at_edge(
    axes: Axes, placed: Sequence[tuple[float, str]], colour: str, *, is_top: bool, below: int = 0
) -> None:
    """Texts beside their places, in rows in turn so that neighbours do not cover each other, and within the axes."""
    low, high = axes.get_xlim()
    for number, (x, text) in enumerate(placed[:_MOST_LABELS]):
        row = below + number % _ROWS
        is_late = x > low + _LATE * (high - low)
        axes.annotate(
            text,
            (x, 1.0 if is_top else 0.0),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if is_late else 3, (-4 - 12 * row) if is_top else (4 + 12 * row)),
            ha="right" if is_late else "left",
            textcoords="offset points",
            color=colour,
            fontsize=8,
            va="top" if is_top else "bottom",
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.6},
        )


def _finish(axes: Axes, curve: Curve) -> None:
    failures, rollbacks = len(curve.of(MarkKind.FAILURE)), len(curve.of(MarkKind.ROLLBACK))
    axes.set_title(f"{curve.run}: {failures} failures, {rollbacks} rollbacks", loc="left", fontsize=11)
    axes.set_ylabel("loss")
    axes.grid(alpha=0.25)
    beside_the_title: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.985), "borderaxespad": 0.3}
    axes.legend(fontsize=8, ncols=_MOST_LEGEND, frameon=False, columnspacing=1.2, handlelength=1.4, **beside_the_title)
    _quiet(axes)


def _quiet(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_QUIET, labelcolor="black")


def _coloured(curve: Curve) -> list[tuple[int, str]]:
    return [(each, _ATTEMPT_COLOURS[index % len(_ATTEMPT_COLOURS)]) for index, each in enumerate(curve.attempts)]


def _dots(colour: str, label: str) -> dict[str, Any]:
    return {"ls": "", "marker": "o", "ms": 3.5, "color": colour, "label": label}


def _arrow() -> dict[str, Any]:
    return {"arrowstyle": "-|>", "color": _ROLLBACK, "lw": 1.2, "mutation_scale": 8, "shrinkA": 0, "shrinkB": 0}


def _time_unit(span_s: float) -> tuple[str, float]:
    if span_s < 300.0:
        return "seconds", 1.0
    if span_s < 3 * 3600.0:
        return "minutes", 60.0
    return ("hours", 3600.0) if span_s < 4 * 86_400.0 else ("days", 86_400.0)
