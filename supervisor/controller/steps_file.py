# SPDX-License-Identifier: Apache-2.0
"""Loss and throughput of every step in one CSV file: for the plot, and to give the loss detector its baseline back.

At most two files of `LIMIT_BYTES` each are kept. A torn last line is left out when reading.
"""

from __future__ import annotations

import contextlib
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
            with contextlib.suppress(OSError):  # rows that found no room on the disk
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
    """Rows of the older and the newer file, oldest first; what is no row is left out."""
    for each in (path.with_suffix(".old.csv"), path):
        if not each.is_file():
            continue
        with each.open(encoding="ascii", errors="replace") as file:
            for line in file:
                row = _step_line(line.rstrip("\n").split(",")) if line.endswith("\n") else None
                if row is not None:
                    yield row


def _step_line(cells: list[str]) -> StepLine | None:
    def number(cell: str) -> float | None:
        return float(cell) if cell else None

    try:
        attempt, step, position, at, loss, norm, tokens = cells
        place = int(position) if position else None
        return StepLine(int(attempt), int(step), place, float(at), number(loss), number(norm), int(tokens))
    except ValueError:
        return None
