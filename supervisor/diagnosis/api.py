# SPDX-License-Identifier: Apache-2.0
"""Diagnosis as the rest of the supervisor uses it: sources and exit codes in, one cause and one action out.

An outside answer of `Unknown` is honest, a wrong isolation is the worst: a node is named for isolation only by a row
of the table that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from supervisor.diagnosis.answers import Case
from supervisor.diagnosis.clues import Findings, Scanner
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
from supervisor.diagnosis.reading import LogReadError, find_sources, read_lines
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
    "RankExit",
    "Stream",
    "diagnose",
    "find_sources",
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
    matcher: Matcher | None = None,
) -> Diagnosis:
    """Find the cause of a failure.

    Args:
        sources: The logs, in any order; each is read once, as a stream.
        exits: How the ranks' processes ended, as the supervisor saw it; empty when only logs are at hand.
        world_size: Number of ranks of the attempt.
        hang: Given when the attempt was stopped because no step came.
        stopped_by_us: Ranks whose SIGTERM or SIGKILL is our own clearing up.
        matcher: The signature table; the one of the package by default.

    Raises:
        LogReadError: A source's file cannot be read.
    """
    scanner = Scanner(matcher or default_matcher())
    findings = [_scan(scanner, source) for source in sources]
    return judge(Case(findings, tuple(exits), world_size, hang, frozenset(stopped_by_us)))


def _scan(scanner: Scanner, source: LogSource) -> Findings:
    lines = read_lines(source.lines) if isinstance(source.lines, Path) else source.lines
    if not source.name.endswith("error.json"):
        return scanner.scan(source, lines)
    if isinstance(source.lines, Path):
        with source.lines.open(encoding="utf-8", errors="replace") as file:
            return scanner.scan_error_file(source, file.read(_LARGEST_ERROR_FILE_CHARS))
    return scanner.scan_error_file(source, "\n".join(lines)[:_LARGEST_ERROR_FILE_CHARS])


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
