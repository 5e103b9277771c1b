# SPDX-License-Identifier: Apache-2.0
"""The loss as one line of text, in the order of training, with failures and rollbacks marked below it. Pure.

A loss far beyond the usual ones is shown at the highest level.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence

from supervisor.controller.curve import Curve, MarkKind, usual_range

WIDTH = 72
_UNICODE_LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_LEVELS = "_.-~=+*#"
_UNICODE_MARKS = {MarkKind.FAILURE: "\u2716", MarkKind.ROLLBACK: "\u21a9"}
_ASCII_MARKS = {MarkKind.FAILURE: "x", MarkKind.ROLLBACK: "<"}


def lines(curve: Curve, *, unicode: bool, width: int = WIDTH) -> list[str]:
    """A title, the line, the marks, and what they mean; ASCII unless `unicode`. `curve` has points."""
    levels = _UNICODE_LEVELS if unicode else _ASCII_LEVELS
    signs = _UNICODE_MARKS if unicode else _ASCII_MARKS
    losses = [point.loss for point in curve.points]
    low, high = usual_range(losses)
    shown = [levels[level] for level in _levels(_binned(losses, width), low, high, len(levels))]
    told = [_title(curve), "".join(shown)]
    below = _below(curve, len(shown), signs)
    if below.strip():
        told.append(below)
        told.append("  ".join(f"{sign} {kind.value}" for kind, sign in signs.items() if sign in below))
    return told


def _title(curve: Curve) -> str:
    first, last = curve.points[0], curve.points[-1]
    highest = max(point.loss for point in curve.points)
    attempts = len(curve.attempts)
    plural = "attempt" if attempts == 1 else "attempts"
    return (
        f"{curve.run}: loss {first.loss:.4g} to {last.loss:.4g} (highest {highest:.4g}) "
        f"at step {last.step}, {attempts} {plural}"
    )


def _binned(losses: Sequence[float], width: int) -> list[float]:
    """The highest loss of each of at most `width` equal shares."""
    count = min(width, len(losses))
    edges = [len(losses) * index // count for index in range(count + 1)]
    return [max(losses[begin:end]) for begin, end in itertools.pairwise(edges)]


def _levels(values: Sequence[float], low: float, high: float, count: int) -> list[int]:
    if high <= low:
        return [0] * len(values)
    return [min(count - 1, int((value - low) / (high - low) * count)) for value in values]


def _below(curve: Curve, columns: int, signs: dict[MarkKind, str]) -> str:
    """Where several marks meet, the rollback is shown."""
    times = [point.at for point in curve.points]
    row = [" "] * columns
    for kind, sign in signs.items():
        for mark in curve.of(kind):
            index = min(bisect_left(times, mark.at), len(times) - 1)
            row[index * columns // len(times)] = sign
    return "".join(row).rstrip()
