# SPDX-License-Identifier: Apache-2.0
"""Everything that is read from an attempt's ranks while they run; changes nothing in them.

A command without torchrun that shows no rank is its own only rank: it is followed by the launcher's output.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.agent import logs
from supervisor.agent.api import LaunchSpec, RankStatus, StepRow
from supervisor.agent.logs import Tail
from supervisor.agent.processes import ProcessId
from supervisor.agent.progress import OutputProgress, RingProgress, process_state, step_to_stop_at
from supervisor.agent.ranks import RankFinder
from supervisor.agent.record import KnownRank
from supervisor.detection.patterns import PatternError, StepParser, StepReading, custom_pattern

_ALONE_AFTER_S = 3.0
"""From the start of a command until it is taken for its own only rank."""


@dataclass(frozen=True, slots=True)
class StepsRead:
    """`source` is as in the report StepsSeen."""

    source: str
    rows: tuple[StepRow, ...]


class RankWatch:
    """`launcher` is None when it had ended before anyone looked."""

    def __init__(
        self,
        spec: LaunchSpec,
        attempt: int,
        rank_folder: Path,
        launcher: ProcessId | None,
        *,
        is_torchrun: bool,
        is_attached: bool = False,
    ) -> None:
        self.known: dict[ProcessId, KnownRank] = {}
        self.notes: list[str] = []
        self._spec = spec
        self._launcher = launcher
        self._is_torchrun = is_torchrun
        self._is_attached = is_attached
        self._finder = RankFinder(rank_folder, attempt)
        self._rings: dict[int, RingProgress] = {}
        self._outputs: dict[ProcessId, OutputProgress] = {}
        self._lines = LineFollower(spec, self.notes)
        self._rows: list[StepRow] = []
        self._rows_from: int | None = None
        self._newest_step = self._told_before = 0
        self._began = time.monotonic()

    def look(self) -> list[KnownRank]:
        """Ranks that were not known before."""
        found = self._finder.find(self._launcher, is_torchrun=self._is_torchrun)
        if not found and not self.known and self._is_alone() and self._launcher is not None:
            found = [KnownRank(0, 0, self._launcher)]
        fresh = [each for each in found if each.process not in self.known]
        self.known |= {each.process: each for each in fresh}
        self.notes += self._finder.notes
        self._finder.notes.clear()
        for each in self.known.values():
            self._link(each)
        if not self._is_torchrun and not self._is_attached and not self.known:
            # All that is not torchrun writes into the launcher's files, which are shown from the first line on.
            logs.link(Path(self._spec.attempt_folder), 0, 0, is_torchrun=False)
        return fresh

    @property
    def is_settled(self) -> bool:
        """Whether all ranks are known and the first step was seen, so that it is enough to look seldom."""
        if not self.known or len(self.known) < self._finder.expected:
            return False
        return any(ring.has_stepped for ring in self._rings.values()) or self._lines.step is not None

    @property
    def reporting(self) -> int:
        """Ranks that have told of themselves by a ring."""
        return len(self._rings)

    def read(self) -> None:
        """Take in what the ranks have written since the last call."""
        rings = self._finder.rings()
        for rank, ring in rings.items():
            progress = self._rings.get(rank)
            if progress is None or progress.ring is not ring:
                self._rings[rank] = RingProgress(ring)
        read = {rank: self._rings[rank].read() for rank in rings}
        if read:
            self._take(min(read), read[min(read)])
        elif self.known:
            self._rows += self._lines.read(min(each.rank for each in self.known.values()))

    def _take(self, rank: int, rows: list[StepRow]) -> None:
        """A lower rank that reports later than others takes over with the first step that was not told yet."""
        if rank != self._rows_from:
            self._rows_from, self._told_before = rank, self._newest_step
        fresh = [row for row in rows if row.step > self._told_before]
        if fresh:
            self._told_before = 0
            self._newest_step = fresh[-1].step
        self._rows += fresh

    def taken_rows(self) -> StepsRead:
        """The rows not taken yet: of the lowest rank that reports, else of the lowest rank's output."""
        rows, self._rows = tuple(self._rows), []
        return StepsRead("client" if self._rings else "log", rows)

    def statuses(self, living: Iterable[ProcessId]) -> tuple[RankStatus, ...]:
        alive = frozenset(living)
        newest = {each.rank: each for each in self.known.values()}
        return tuple(self._status(each, each.process in alive) for _, each in sorted(newest.items()))

    def has_finished(self, known: KnownRank) -> bool:
        """Whether the client marked a clean end, as far as it was read."""
        progress = self._rings.get(known.rank)
        return progress is not None and progress.ring.identity.pid == known.process.pid and progress.is_finished

    def is_instrumented(self, known: KnownRank) -> bool:
        return known.rank in self._rings

    def stop_step(self) -> int:
        """Where to ask the ranks of this node to stop."""
        times = [median for ring in self._rings.values() if (median := ring.median_step_s()) is not None]
        return step_to_stop_at((ring.step for ring in self._rings.values()), max(times, default=None))

    def close(self) -> None:
        self._finder.close()
        self._rings.clear()

    def _link(self, known: KnownRank) -> None:
        folder = Path(self._spec.attempt_folder)
        if self._is_attached:
            logs.link_open_files(folder, known.rank, known.process.pid)
        else:
            logs.link(folder, known.rank, known.local_rank, is_torchrun=self._is_torchrun)

    def _is_alone(self) -> bool:
        return not self._is_torchrun and time.monotonic() - self._began > _ALONE_AFTER_S

    def _status(self, known: KnownRank, is_alive: bool) -> RankStatus:
        state = process_state(known) if is_alive else None
        ring = self._rings.get(known.rank)
        if ring is not None:
            return ring.status(known, alive=is_alive, process_state=state)
        output = self._outputs.setdefault(known.process, OutputProgress())
        files = logs.of_rank(Path(self._spec.attempt_folder), known.rank).both
        return output.status(known, files, step=self._lines.step, alive=is_alive, process_state=state)


class LineFollower:
    """Reads steps from the output of a rank that is not instrumented."""

    def __init__(self, spec: LaunchSpec, notes: list[str]) -> None:
        self.step: int | None = None
        """Of the newest line that had one."""
        self._folder = Path(spec.attempt_folder)
        self._tails: dict[Path, Tail] = {}
        custom = None
        if spec.step_pattern:
            try:
                custom = custom_pattern(spec.step_pattern)
            except PatternError as error:
                notes.append(str(error))
        # Each stream has its own parser, because each keeps to the pattern that it began with.
        self._parsers = {stream: StepParser(custom=custom) for stream in logs.STREAMS}

    def read(self, rank: int) -> list[StepRow]:
        """Rows of the lines that the rank has written since the last call; the time is that of reading."""
        rows = []
        for stream, path in zip(logs.STREAMS, logs.of_rank(self._folder, rank).both, strict=True):
            for line in self._tails.setdefault(path, Tail(path)).lines():
                self._parsers[stream], reading = self._parsers[stream].read(line)
                if reading is not None and reading.step is not None:
                    self.step = reading.step
                    rows.append(_row(reading))
        return rows


def _row(reading: StepReading) -> StepRow:
    return StepRow(
        step=reading.step or 0,
        position=None,
        at=time.time(),
        loss=reading.loss,
        grad_norm=reading.grad_norm,
        tokens=int(reading.tokens or 0),
    )
