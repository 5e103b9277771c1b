# SPDX-License-Identifier: Apache-2.0
"""Tokens a second and the usual step time over the last steps, for the progress line."""

from __future__ import annotations

import itertools
import statistics
from collections import deque

from supervisor.agent.api import StepRow

WINDOW_STEPS = 50
SHORTEST_STEP_S = 0.0005
"""Two steps that lie closer together were stamped when they were read, not when they were done."""


class Throughput:
    """Of one attempt."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, float, int]] = deque(maxlen=WINDOW_STEPS)
        self._ranks = 1

    def add(self, row: StepRow, ranks: int) -> None:
        """`row.tokens` are of the reporting rank alone; every rank is taken to train on as many."""
        self._rows.append((row.step, row.at, row.tokens))
        self._ranks = max(1, ranks)

    @property
    def tokens_per_s(self) -> float | None:
        if len(self._rows) < 2:
            return None
        elapsed_s = self._rows[-1][1] - self._rows[0][1]
        tokens = sum(tokens for _, _, tokens in list(self._rows)[1:])
        return tokens * self._ranks / elapsed_s if elapsed_s > 0 and tokens else None

    @property
    def step_s(self) -> float | None:
        """Median duration of a step in seconds; the mean where rows came in bursts, as those read from a log do."""
        rows = list(self._rows)
        if len(rows) > 1 and any(b[1] - a[1] < SHORTEST_STEP_S for a, b in itertools.pairwise(rows)):
            return (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])
        times = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(rows) if b[0] > a[0]]
        return statistics.median(times) if times else None
