# SPDX-License-Identifier: Apache-2.0
"""Numbers, times and states as a person reads them; ASCII only, so that they suit any stream."""

from __future__ import annotations

import re
import time

from supervisor.core.api import BatchRange, Phase, RunState

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clock(at: float) -> str:
    """Local time of day of unix seconds."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def date_and_clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def duration(seconds: float) -> str:
    """`0.4 s`, `1 min 15 s`, `2 h 05 min` or `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def quantity(value: float) -> str:
    """Three digits and a unit: `950`, `12.3k`, `4.56M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def ranges(skipped: tuple[BatchRange, ...]) -> str:
    return ", ".join(f"{span.first}-{span.last}" for span in skipped)


def phase(state: RunState) -> str:
    """The phase, and what for when it waits."""
    if state.phase is Phase.WAITING and state.waiting_for is not None:
        return f"WAITING for {state.waiting_for.value}"
    return state.phase.value


def printable(line: str) -> str:
    """`line` as one harmless line: what a progress bar overwrote is gone, and so are escapes and control characters."""
    last = line.rstrip("\r\n").rsplit("\r", 1)[-1]
    return _CONTROLS.sub("", _ESCAPES.sub("", last))
