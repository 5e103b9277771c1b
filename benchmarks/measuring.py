# SPDX-License-Identifier: Apache-2.0
"""What every benchmark does around its measurement: where it ran, its table, its bars and its result file.

A bar that is missed is printed like one that is met, and makes the script's exit code 1; nothing is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"

Row: TypeAlias = Sequence[object]


@dataclass(frozen=True, slots=True)
class Place:
    """Where and when a measurement began; a high load average says that others used the machine meanwhile."""

    machine: str
    python: str
    commit: str
    load_average: float
    """Of the last minute when the measurement began."""
    began_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A claim: `value` is at most `limit`, both in `unit`."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        """False also for a value that is not a number."""
        return self.value <= self.limit

    def __str__(self) -> str:
        told = "met" if self.is_met else "MISSED"
        return f"{self.name}: {self.value:.4g} {self.unit}, bar {self.limit:.4g} {self.unit}: {told}"


def place() -> Place:
    """Call it before anything is measured."""
    version = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=ROOT, capture_output=True)
    return Place(
        machine=f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        python=platform.python_version(),
        commit=version.stdout.decode().strip() or "unknown",
        load_average=round(os.getloadavg()[0], 2),
        began_at=time.time(),
    )


def options(description: str | None, name: str) -> argparse.ArgumentParser:
    """The options that every benchmark has. From here on SIGTERM ends it as Ctrl-C does, with what it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, default=RESULTS / f"{name}.json", help="file for the result")
    return parser


def median(values: Sequence[float]) -> float:
    """Not a number when there are none, which meets no bar."""
    return statistics.median(values) if values else math.nan


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most, and how many values there are."""
    return {
        "median": round(median(values), 4),
        "least": round(min(values, default=math.nan), 4),
        "most": round(max(values, default=math.nan), 4),
        "trials": len(values),
    }


def show(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """One table; numbers stand right, the first column left."""
    cells = [[_cell(each) for each in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table()
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left")
        for line in cells:
            table.add_row(*line)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (list(columns), *cells):
        first, *others = [cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))]  # noqa: B905
        print("  ".join([first, *others]).rstrip(), flush=True)


def conclude(
    began: Place, output: Path, parameters: Mapping[str, Any], found: Mapping[str, Any], bars: list[Bar]
) -> int:
    """Print the bars and write the result; the exit code."""
    result = {
        **asdict(began),
        "took_s": round(time.time() - began.began_at, 1),
        "parameters": dict(parameters),
        **found,
        "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in bars],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(_without_nan(result), indent=2, allow_nan=False) + "\n")
    for bar in bars:
        print(bar)
    print(f"load average at the start {began.load_average}; {result['took_s']} s; written to {output}")
    return 0 if all(bar.is_met for bar in bars) else 1


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _without_nan(value: Any) -> Any:
    """JSON has no word for what is not a number; it is written as null."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
