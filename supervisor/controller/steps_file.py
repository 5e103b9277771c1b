# SPDX-License-Identifier: Apache-2.0
"""Loss and throughput of every step in one CSV file: for the plot, and to give the loss detector its baseline back.

At most two files of `LIMIT_BYTES` each are kept. A torn last line is left out when reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from supervisor.agent.api import StepRow

HEADER = "attempt,step,position,at,loss,grad_norm,tokens"
LIMIT_BYTES = 64 * 2**20


class StepLine(NamedTuple):
    attempt: int
    step: int
    position: int | None
    at: float
    loss: float | None
    grad_norm: float | None
    tokens: int


class StepsFile:
    """Append-only; a failing disk costs rows, never the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self.lost_rows = 0

    def append(self, attempt: int, rows: tuple[StepRow, ...]) -> None:
        try:
            file = self._open()
            for row in rows:
                cells = (attempt, row.step, row.position, row.at, row.loss, row.grad_norm, row.tokens)
                file.write(",".join("" if cell is None else str(cell) for cell in cells) + "\n")
            file.flush()
        except OSError:
            self.lost_rows += len(rows)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        if self._file is not None and self._file.tell() > LIMIT_BYTES:
            self._file.close()
            self._path.replace(self._path.with_suffix(".old.csv"))
            self._file = None
        if self._file is None:
            self._file = self._path.open("a", encoding="ascii")
            if self._file.tell() == 0:
                self._file.write(HEADER + "\n")
        return self._file


def read_steps(path: Path) -> Iterator[StepLine]:
    """Rows of the older and the newer file, oldest first."""
    for each in (path.with_suffix(".old.csv"), path):
        if not each.exists():
            continue
        with each.open(encoding="ascii") as file:
            for line in file:
                cells = line.rstrip("\n").split(",")
                if len(cells) == 7 and cells[0].isdigit() and line.endswith("\n"):
                    yield _step_line(cells)


def _step_line(cells: list[str]) -> StepLine:
    def number(cell: str) -> float | None:
        return float(cell) if cell else None

    position = int(cells[2]) if cells[2] else None
    return StepLine(
        int(cells[0]), int(cells[1]), position, float(cells[3]), number(cells[4]), number(cells[5]), int(cells[6])
    )
