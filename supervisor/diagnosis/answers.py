# SPDX-License-Identifier: Apache-2.0
"""Builds the answer around a cause: whom it names, the lines that prove it, and what is left aside as a symptom.

An error that several ranks met with the same words is the program's, so it names no rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.diagnosis.clues import Clue, Findings
from supervisor.diagnosis.exits import ExitRule
from supervisor.diagnosis.model import UNKNOWN, Action, Diagnosis, EvidenceLine, Hang, RankExit
from supervisor.diagnosis.services import service_of
from supervisor.diagnosis.signatures import Trust

_CONFIDENCE = {
    Trust.KERNEL: 0.95,
    Trust.LOCAL: 0.9,
    Trust.PYTHON: 0.85,
    Trust.SOFT: 0.6,
    Trust.SETTING: 0.6,
    Trust.PEER: 0.5,
    Trust.WATCHDOG: 0.5,
    Trust.CLEANUP: 0.5,
    Trust.WRAPPER: 0.3,
}
_MOST_EVIDENCE = 5
_MOST_NOTES = 4
_LONGEST_WORDS_CHARS = 240


@dataclass(frozen=True, slots=True)
class Case:
    """Everything known about one failure."""

    findings: Sequence[Findings]
    exits: Sequence[RankExit] = ()
    world_size: int | None = None
    hang: Hang | None = None
    stopped_by_us: frozenset[int] = frozenset()
    launcher_exit: int | None = None
    failed_at: float | None = None
    is_live: bool = False
    """A supervisor saw it happen; otherwise only logs are at hand."""


def from_clue(case: Case, clue: Clue, clues: list[Clue], *, names_culprit: bool = True) -> Diagnosis:
    row = clue.signature
    same = [other for other in clues if other.signature.reason == row.reason and other is not clue]
    met_by = {clue.rank, *(other.rank for other in same if _is_same_error(clue, other))} - {None}
    rank = next(iter(met_by)) if len(met_by) == 1 else clue.rank
    is_of_all = len(met_by) > 1 and row.trust in {Trust.PYTHON, Trust.LOCAL} and row.blames in {"user", "service"}
    names_culprit = names_culprit and not is_of_all
    action = row.action
    explanation = f"{row.explanation} It says: {_words(clue)}{_place(clue)}"
    if is_of_all:
        explanation += f" {len(met_by)} ranks met the same error, so no node is to blame."
    if action is Action.ISOLATE_NODE_AND_RESTART and row.trust is Trust.LOCAL and _is_on_many_nodes(clue, clues):
        action = Action.FIX_USER if row.reason == "CUDAError" else Action.RESTART_SAME
        names_culprit = False
        explanation += " Several nodes say the same, so no single node is to blame."
    proofs = [clue.where, *(other.where for other in same), *_reported_lines(case, rank)]
    others = [other.where for other in clues if other.signature.reason != row.reason]
    return Diagnosis(
        row.reason,
        action,
        _CONFIDENCE[row.trust],
        explanation,
        row.suggestion,
        f"signature:{row.name}",
        node=(clue.node or node_of(case, rank)) if names_culprit else None,
        rank=rank if names_culprit else None,
        also_seen=also_seen(row.reason, clues),
        symptom_notes=symptom_notes(row.reason, clues),
        evidence=_distinct([*proofs, *others[:1]]),
        service=row.service or (service_of(clue.error) if row.reason == "ConnectionError" else None),
        fatal=row.fatal,
    )


def _words(clue: Clue) -> str:
    """The error as it was printed, in one sentence."""
    text = " ".join((clue.where.text if clue.error is None else clue.error.text).split())
    cut = text if len(text) <= _LONGEST_WORDS_CHARS else f"{text[:_LONGEST_WORDS_CHARS]}..."
    return cut if cut.endswith((".", "!", "?")) else f"{cut}."


def _place(clue: Clue) -> str:
    """Where a Python error was raised: the innermost frame outside of installed libraries, else the innermost."""
    if clue.error is None or not clue.error.frames:
        return ""
    own = [
        frame for frame in clue.error.frames if "/site-packages/" not in frame.file and "/lib/python" not in frame.file
    ]
    frame = (own or clue.error.frames)[-1]
    return f" Raised at {frame.file}:{frame.line}" + (f" in {frame.function}." if frame.function else ".")


def _is_on_many_nodes(clue: Clue, clues: Sequence[Clue]) -> bool:
    """A network port's event is told by each node that sees it, so only a rank's own GPU counts here."""
    nodes = {other.node for other in clues if other.signature is clue.signature and other.node is not None}
    return clue.signature.reason in {"CUDAError", "ECCError"} and len(nodes) > 1


def _is_same_error(one: Clue, other: Clue) -> bool:
    """The same words, or the same class raised at the same line with words that name the rank."""
    if one.error is None or other.error is None:
        return False
    if one.error.text == other.error.text:
        return True
    is_same_place = bool(one.error.frames) and one.error.frames[-1:] == other.error.frames[-1:]
    return is_same_place and one.error.kind == other.error.kind


def from_rule(
    case: Case,
    rule: ExitRule,
    clues: list[Clue],
    *,
    rank: int | None,
    node: str | None,
    where: EvidenceLine | None = None,
) -> Diagnosis:
    lines = [where] if where is not None else _reported_lines(case, rank)
    return Diagnosis(
        rule.reason,
        rule.action,
        rule.confidence,
        rule.explanation,
        rule.suggestion,
        f"signature:{rule.name}",
        node=node or node_of(case, rank),
        rank=rank,
        also_seen=also_seen(rule.reason, clues),
        symptom_notes=symptom_notes(rule.reason, clues),
        evidence=_distinct([*lines, *(clue.where for clue in clues)]),
    )


def _reported_lines(case: Case, rank: int | None) -> list[EvidenceLine]:
    told = [(reported, where) for f in case.findings for reported, where, _ in f.exits]
    return [where for reported, where in told if rank is None or reported.rank in {None, rank}][:2]


def _distinct(lines: Sequence[EvidenceLine]) -> tuple[EvidenceLine, ...]:
    seen: dict[tuple[str, int], EvidenceLine] = {}
    for line in lines:
        seen.setdefault((line.file, line.line_number), line)
    return tuple(seen.values())[:_MOST_EVIDENCE]


def node_of(case: Case, rank: int | None) -> str | None:
    if rank is None:
        return None
    nodes = [e.node for e in case.exits if e.rank == rank]
    nodes += [f.source.node for f in case.findings if f.source.rank == rank and f.source.node is not None]
    return nodes[0] if nodes else None


def also_seen(reason: str, clues: Sequence[Clue]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(clue.signature.reason for clue in clues if clue.signature.reason != reason))


def symptom_notes(reason: str, clues: Sequence[Clue]) -> tuple[str, ...]:
    by_reason: dict[str, str] = {}
    for clue in clues:
        row = clue.signature
        if row.reason != reason and row.reason not in by_reason:
            why = row.explanation if row.is_symptom else f"weaker or later than the cause. {row.explanation}"
            by_reason[row.reason] = f"{row.reason} ({clue.where.file}:{clue.where.line_number}): {why}"
    return tuple(by_reason.values())[:_MOST_NOTES]


def no_failure(case: Case) -> Diagnosis:
    lines = sum(findings.lines for findings in case.findings)
    progress = " The last lines are a training's normal ones." if any(f.has_progress for f in case.findings) else ""
    return Diagnosis(
        UNKNOWN,
        Action.RESTART_SAME,
        0.0,
        f"No failure found in {lines} lines of {len(case.findings)} logs.{progress}",
        "When the run did fail, give the logs of all ranks, the launcher's output and the nodes' kernel logs.",
    )
