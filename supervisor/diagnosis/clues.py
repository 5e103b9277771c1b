# SPDX-License-Identifier: Apache-2.0
"""Reads one log, line by line, and keeps its clues: the lines and exceptions that a row of the table knows.

Memory does not grow with the log: of each message family the first lines of each rank are kept, and of the
exceptions of each rank the first few and the last few. Most lines cost one literal search and nothing more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from supervisor.diagnosis.launcher import LauncherReader, ReportedExit, parse_error_file
from supervisor.diagnosis.model import EvidenceLine, LogSource, Stream
from supervisor.diagnosis.prefixes import MAX_LINE_CHARS, Line, strip
from supervisor.diagnosis.shapes import Shapes, shapes_of
from supervisor.diagnosis.signatures import Matcher, Signature, Trust
from supervisor.diagnosis.tracebacks import HEADER, PythonError, TracebackReader, chains

_KEPT_PER_FAMILY = 4
_KEPT_CLUES = 1024
_KEPT_STREAMS = 4096
_KEPT_ERRORS = 8
_KEPT_TEXT_CHARS = 500
_REMEMBERED_LINES = 40


@dataclass(frozen=True, slots=True)
class Clue:
    """A line of a known family.

    `order` counts lines over all sources; `at` is seconds since 1 January as
    the log writes it, `epoch` the rank's own or its exit's time; both where known.
    """

    signature: Signature
    where: EvidenceLine
    order: int
    rank: int | None = None
    node: str | None = None
    at: float | None = None
    error: PythonError | None = None
    is_survived: bool = False
    epoch: float | None = None


@dataclass(slots=True)
class Findings:
    """All that was kept of one log."""

    source: LogSource
    lines: int = 0
    clues: list[Clue] = field(default_factory=list)
    exits: list[tuple[ReportedExit, EvidenceLine, int]] = field(default_factory=list)
    has_progress: bool = False
    is_cut: bool = False
    """The start of the log was left out."""


@dataclass(slots=True)
class _Stream:
    """The exceptions of one rank in one log."""

    reader: TracebackReader = field(default_factory=TracebackReader)
    first: list[tuple[PythonError, Line, str, int]] = field(default_factory=list)
    last: deque[tuple[PythonError, Line, str, int]] = field(default_factory=lambda: deque(maxlen=_KEPT_ERRORS))

    def keep(self, error: PythonError, line: Line, raw: str, order: int) -> None:
        if len(self.first) < _KEPT_ERRORS:
            self.first.append((error, line, raw, order))
        else:
            self.last.append((error, line, raw, order))


class Scanner:
    """Scans logs with one table; a scanner holds no state between logs except the count of lines."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._shapes = shapes_of(matcher)
        self._order = 0

    def scan(self, source: LogSource, lines: Iterable[str]) -> Findings:
        """Read all of `lines`; what is kept is bounded whatever their number and length."""
        return _Scan(self._matcher, self._shapes, source, self._order).run(lines, self._advance)

    def scan_error_file(self, source: LogSource, text: str) -> Findings:
        """Read torch elastic's error.json, which one rank wrote about its own end."""
        findings = Findings(source, lines=1)
        content = parse_error_file(text)
        if content is None or not content.errors:
            return findings
        root = root_of_chain(list(content.errors), self._matcher)
        if root is not None:
            signature = self._matcher.match(root.text) or self._matcher.fallback
            where = EvidenceLine(source.name, 1, root.text[:_KEPT_TEXT_CHARS])
            findings.clues.append(
                Clue(signature, where, self._order + 1, source.rank, source.node, error=root, epoch=content.at)
            )
        self._order += 1
        return findings

    def _advance(self, count: int) -> None:
        self._order += count


class _Scan:
    """One log being read."""

    def __init__(self, matcher: Matcher, shapes: Shapes, source: LogSource, order: int) -> None:
        self._matcher = matcher
        self._shapes = shapes
        self._source = source
        self._start = order
        self._findings = Findings(source)
        self._launcher = LauncherReader()
        self._streams: dict[int | None, _Stream] = {}
        self._per_family: Counter[tuple[str, int | None]] = Counter()
        self._recent: deque[str] = deque(maxlen=_REMEMBERED_LINES)
        self._last_at: float | None = None
        self._last_progress = 0
        self._open_streams = 0

    def run(self, lines: Iterable[str], advance: Callable[[int], None]) -> Findings:
        number = 0
        for number, raw in enumerate(lines, start=1):
            text = raw[:MAX_LINE_CHARS]
            is_interesting, is_progress = self._shapes.of(text)
            if is_progress:
                self._last_progress = number
            if is_interesting or self._is_open():
                self._read(text, number)
            self._recent.append(text)
        advance(number)
        self._findings.lines = number
        return self._finish()

    def _is_open(self) -> bool:
        """True while a traceback or a launcher's block is being read, so that no line may be left out."""
        return self._open_streams > 0 or self._launcher.in_block or self._launcher.in_traceback

    def _read(self, raw: str, number: int) -> None:
        line = strip(raw)
        if self._read_launcher(line, raw, number):
            return
        stream = self._stream(line.rank if line.rank is not None else line.local_rank)
        was_inside = stream.reader.is_inside
        wanted = stream.reader.wants_more
        error = stream.reader.feed(line.text, number)
        self._open_streams += int(stream.reader.wants_more) - int(wanted)
        if error is not None:
            stream.keep(error, self._dated(line), raw, self._start + number)
            return
        if HEADER in line.text or (was_inside and line.text[:1] in {"", " ", "\t"}):
            return
        signature = self._matcher.match(line.text)
        if signature is not None:
            self._add(signature, line, raw, number)

    def _read_launcher(self, line: Line, raw: str, number: int) -> bool:
        """True when the line is part of a traceback that the launcher repeats in its block."""
        before = len(self._launcher.exits)
        if self._launcher.has_use_for(line.text):
            self._launcher.feed(line.text, number)
        for reported in self._launcher.exits[before:]:
            self._findings.exits.append((reported, self._evidence(raw, number), self._start + number))
        return self._launcher.in_traceback

    def _stream(self, rank: int | None) -> _Stream:
        if rank not in self._streams and len(self._streams) >= _KEPT_STREAMS:
            rank = None
        return self._streams.setdefault(rank, _Stream())

    def _add(self, signature: Signature, line: Line, raw: str, number: int) -> None:
        key = (signature.name, line.rank)
        self._per_family[key] += 1
        if self._per_family[key] > _KEPT_PER_FAMILY or len(self._findings.clues) >= _KEPT_CLUES:
            return
        self._findings.clues.append(
            Clue(
                signature,
                self._evidence(raw, number),
                self._start + number,
                self._rank_of(line),
                self._source.node or line.node,
                self._dated(line).at,
            )
        )

    def _rank_of(self, line: Line) -> int | None:
        """The launcher's rank; a local rank is one only where all lines are of one machine."""
        if line.rank is not None:
            return line.rank
        if self._source.rank is not None or self._source.node is not None:
            return self._source.rank
        return line.local_rank

    def _dated(self, line: Line) -> Line:
        """A line without a time stamp was written after the last one that has one."""
        if line.at is not None:
            return line
        while self._recent:
            at = strip(self._recent.pop()).at
            if at is not None:
                self._recent.clear()
                self._last_at = at
        return replace(line, at=self._last_at)

    def _evidence(self, raw: str, number: int) -> EvidenceLine:
        return EvidenceLine(self._source.name, number, raw.rstrip("\r\n")[:_KEPT_TEXT_CHARS])

    def _finish(self) -> Findings:
        for stream in self._streams.values():
            self._add_errors([*stream.first, *stream.last])
        for rank, node, error in self._launcher.errors:
            line = Line(error.text, rank, None, node)
            self._add_error(error, line, error.text, self._start + error.line_number, survived=False)
        findings = self._findings
        findings.has_progress = self._last_progress > 0
        if self._source.stream is not Stream.KERNEL:
            findings.clues = [self._judge_survival(clue) for clue in findings.clues]
        findings.clues.sort(key=lambda clue: clue.order)
        return findings

    def _judge_survival(self, clue: Clue) -> Clue:
        """A rank that went on to report steps did survive the line.

        Where a log mixes ranks, another one may have reported them, so there it is said of outside services only.
        """
        is_of_service = clue.signature.trust is Trust.SOFT and clue.signature.blames == "service"
        if clue.where.line_number >= self._last_progress or (self._source.rank is None and not is_of_service):
            return clue
        return replace(clue, is_survived=True)

    def _add_errors(self, kept: list[tuple[PythonError, Line, str, int]]) -> None:
        details = {error.line_number: (line, raw, order) for error, line, raw, order in kept}
        for chain in chains([error for error, _, _, _ in kept]):
            root = root_of_chain(chain, self._matcher)
            if root is not None:
                line, raw, order = details[root.line_number]
                self._add_error(root, line, raw, order, survived=not root.fatal)

    def _add_error(self, error: PythonError, line: Line, raw: str, order: int, *, survived: bool) -> None:
        signature = self._matcher.match(error.text)
        if signature is None and error.has_traceback:
            signature = self._matcher.fallback
        if signature is None or len(self._findings.clues) >= _KEPT_CLUES:
            return
        self._findings.clues.append(
            Clue(
                signature,
                self._evidence(raw, error.line_number),
                order,
                self._rank_of(line),
                self._source.node or line.node,
                line.at,
                error,
                survived,
            )
        )


def root_of_chain(chain: list[PythonError], matcher: Matcher) -> PythonError | None:
    """The exception of a chain that tells the cause.

    The first whose text names a cause; else the one that was never caught, which is the last, unless the last was
    only raised while tidying up after the one before it.
    """
    bearing = [error for error in chain if not error.is_wrapper]
    for error in bearing:
        signature = matcher.match(error.text)
        if signature is not None and signature.trust in {Trust.KERNEL, Trust.LOCAL}:
            return error
    plain = [error for error in bearing if not _is_symptom(error, matcher)]
    if not plain:
        return bearing[0] if bearing else None
    if len(plain) > 1 and plain[-1].is_cleanup:
        return plain[0]
    return plain[-1]


def _is_symptom(error: PythonError, matcher: Matcher) -> bool:
    signature = matcher.match(error.text)
    return signature is not None and signature.is_symptom
