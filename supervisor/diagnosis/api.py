# SPDX-License-Identifier: Apache-2.0
"""Diagnosis as the rest of the supervisor uses it: sources and exit codes in, one cause and one action out.

An outside answer of `Unknown` is honest, a wrong isolation is the worst: a node is named for isolation only by a row
of the table that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.diagnosis.answers import Case
from supervisor.diagnosis.clues import Findings, Scanner
from supervisor.diagnosis.hang_evidence import RankEvidence, read_evidence
from supervisor.diagnosis.model import (
    CATEGORY_OF_REASON,
    UNKNOWN,
    Action,
    Category,
    Diagnosis,
    EvidenceLine,
    Hang,
    LogSource,
    RankExit,
    Stream,
)
from supervisor.diagnosis.reading import LogReadError, find_sources, is_cut, read_lines
from supervisor.diagnosis.signatures import Matcher, default_matcher
from supervisor.diagnosis.verdict import judge

__all__ = [
    "CATEGORY_OF_REASON",
    "UNKNOWN",
    "Action",
    "Category",
    "Diagnosis",
    "EvidenceLine",
    "Hang",
    "LogReadError",
    "LogSource",
    "RankEvidence",
    "RankExit",
    "Stream",
    "diagnose",
    "find_sources",
    "prepare",
    "read_evidence",
    "to_json",
]

_LARGEST_ERROR_FILE_CHARS = 4_000_000


def diagnose(
    sources: Iterable[LogSource],
    exits: Iterable[RankExit] = (),
    *,
    world_size: int | None = None,
    hang: Hang | None = None,
    stopped_by_us: Iterable[int] = (),
    launcher_exit: int | None = None,
    failed_at: float | None = None,
    is_live: bool = False,
    kernel: Iterable[LogSource] = (),
    matcher: Matcher | None = None,
) -> Diagnosis:
    """Find the cause of a failure.

    Args:
        sources: The logs, in any order; each is read once, as a stream.
        exits: How the ranks' processes ended, as the supervisor saw it; empty when only logs are at hand.
        world_size: Number of ranks of the attempt.
        hang: Given when the attempt was stopped because no step came.
        stopped_by_us: Ranks whose SIGTERM or SIGKILL is our own clearing up.
        launcher_exit: Exit code of the launcher, negative for a signal; None when we ended it.
        failed_at: When it failed, in epoch seconds; kernel lines far from it count only when they condemn a node.
        is_live: A supervisor saw the failure, even if no rank's end: a kill that nobody explains is then answered by
            another try, while in logs alone it most often means that memory ran out.
        kernel: Kernel logs of the nodes. They are read when a process ended by a signal or when the other logs do
            not already show a mistake of the script, so that a stray kernel line never hides one.
        matcher: The signature table; the one of the package by default.

    Raises:
        LogReadError: A source's file cannot be read.
    """
    scanner = Scanner(matcher or default_matcher())
    findings = [_scan(scanner, source) for source in sources]
    ends = tuple(exits)
    case = Case(
        findings,
        ends,
        world_size,
        hang,
        frozenset(stopped_by_us),
        launcher_exit,
        failed_at,
        is_live=is_live or bool(ends),
    )
    found = judge(case)
    if not _is_scripts_mistake(case, found):
        machine = [_scan(scanner, source) for source in kernel]
        found = judge(replace(case, findings=[*findings, *machine])) if machine else found
    cut = max((each.source.last_bytes or 0 for each in findings if each.is_cut), default=0)
    if not cut:
        return found
    text = (
        f"{found.explanation} Of longer logs only the last {cut / 2**20:.3g} MiB were read, lines counted from there."
    )
    return replace(found, explanation=text)


def prepare() -> None:
    """Compile the signature table now, so that the first diagnosis does not have to."""
    Scanner(default_matcher())


def _is_scripts_mistake(case: Case, found: Diagnosis) -> bool:
    """Whether the logs themselves show what a person has to change, and no process ended by a signal of others."""
    killed = any((each.exit_code or 0) < 0 and each.rank not in case.stopped_by_us for each in case.exits)
    return found.action is Action.FIX_USER and found.reason != UNKNOWN and not killed


def _scan(scanner: Scanner, source: LogSource) -> Findings:
    if not source.name.endswith("error.json"):
        findings = scanner.scan(source, _lines(source))
        findings.is_cut = isinstance(source.lines, Path) and is_cut(source.lines, source.last_bytes)
        return findings
    if isinstance(source.lines, Path):
        with source.lines.open(encoding="utf-8", errors="replace") as file:
            return scanner.scan_error_file(source, file.read(_LARGEST_ERROR_FILE_CHARS))
    return scanner.scan_error_file(source, "\n".join(source.lines)[:_LARGEST_ERROR_FILE_CHARS])


def _lines(source: LogSource) -> Iterable[str]:
    return read_lines(source.lines, source.last_bytes) if isinstance(source.lines, Path) else source.lines


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The object that `supervisor diagnose --format json` prints."""
    return {
        "reason": diagnosis.reason,
        "category": diagnosis.category.value,
        "action": diagnosis.action.value,
        "confidence": diagnosis.confidence,
        "node": diagnosis.node,
        "rank": diagnosis.rank,
        "also_seen": list(diagnosis.also_seen),
        "evidence": [
            {"file": line.file, "line_number": line.line_number, "text": line.text} for line in diagnosis.evidence
        ],
        "explanation": diagnosis.explanation,
        "suggestion": diagnosis.suggestion,
        "decided_by": diagnosis.decided_by,
        "service": diagnosis.service,
        "fatal": diagnosis.fatal,
    }
