# SPDX-License-Identifier: Apache-2.0
"""A story as lines for a person and as JSON for a program. Pure.

The keys of `story_object` are an interface: scripts read them. A key may be added, none changes its meaning.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.controller import wording
from supervisor.controller.status_text import REFERENCES
from supervisor.controller.story import Attempt, Entry, Story
from supervisor.core.api import Severity
from supervisor.core.incidents import Incident

Proofs = Mapping[int, Sequence[str]]
_MOST_PROOFS = 12


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `label` (a time or a key) stands left of `text`; `indent` is its depth."""

    text: str
    label: str = ""
    indent: int = 0
    severity: Severity = Severity.NOTE
    is_heading: bool = False


def story_lines(story: Story, command: Sequence[str], proofs: Proofs) -> list[Line]:
    """Head, timeline with the incidents set in, and the numbers at its end."""
    lines = _head(story, command)
    told: set[int] = set()
    for entry in story.entries:
        if entry.incident == 0:
            lines.append(_entry(entry, 0))
        elif entry.incident not in told:
            told.add(entry.incident)
            lines += _incident(story, entry.incident, proofs.get(entry.incident, ()))
    return lines + _numbers(story)


def plain_lines(lines: Sequence[Line]) -> list[str]:
    """Without colour; severities stand in words."""
    plain = []
    for line in lines:
        label = f"{line.label}  " if line.label else ""
        grave = "" if line.severity is Severity.NOTE or line.is_heading else f"{line.severity.value}: "
        plain.append(f"{'  ' * line.indent}{label}{grave}{wording.printable(line.text)}")
    return plain


def _head(story: Story, command: Sequence[str]) -> list[Line]:
    lines = [Line(f"run {story.run}", is_heading=True)]
    if command:
        lines.append(Line(shlex.join(command), "command", 1))
    lines.append(Line(wording.date_and_clock(story.submitted_at), "submitted", 1))
    lines += [Line(_attempt(each), f"attempt {each.number}", 1) for each in story.attempts]
    return lines


def _attempt(attempt: Attempt) -> str:
    steps = "no step" if attempt.last_step is None else f"to step {attempt.last_step}"
    without = f", without batches {attempt.skipped}" if attempt.skipped else ""
    ended = (
        "" if attempt.ended_at is None else f", ended after {wording.duration(attempt.ended_at - attempt.launched_at)}"
    )
    return f"{wording.clock(attempt.launched_at)}, from {attempt.resume}{without}, {steps}{ended}"


def _entry(entry: Entry, indent: int) -> Line:
    return Line(entry.text, wording.date_and_clock(entry.at), indent, entry.severity)


def _incident(story: Story, number: int, proofs: Sequence[str]) -> list[Line]:
    incident = next((each for each in story.incidents if each.number == number), None)
    entries = [_entry(each, 1) for each in story.entries if each.incident == number]
    if incident is None:
        return entries
    lines = [Line(_title(incident), is_heading=True, severity=Severity.WARNING)]
    lines += entries
    lines += [Line(text, label, 1) for label, text in _findings(story, incident)]
    lines += [Line(proof, "evidence", 1) for proof in proofs[:_MOST_PROOFS]]
    if len(proofs) > _MOST_PROOFS:
        lines.append(Line(f"{len(proofs) - _MOST_PROOFS} more lines in the incident's folder", "evidence", 1))
    lines.append(Line(_recovery(incident), "recovery", 1))
    return lines


def _title(incident: Incident) -> str:
    place = "before its first step" if incident.step is None else f"at step {incident.step}"
    reason = "" if incident.reason is None else f": {incident.reason}"
    return f"incident {incident.number}, {incident.kind.value} of attempt {incident.attempt} {place}{reason}"


def _findings(story: Story, incident: Incident) -> list[tuple[str, str]]:
    verdict = story.verdicts.get(incident.number)
    found = []
    if verdict is not None:
        sure = f"decided by {verdict.decided_by}, confidence {verdict.confidence:.2f}"
        found.append(("cause", f"{verdict.reason} ({verdict.category.value}; {sure}): {verdict.explanation}"))
        if verdict.suspects:
            found.append(("suspects", ", ".join(verdict.suspects)))
        if verdict.suggestion:
            found.append(("advice", verdict.suggestion))
    if incident.number in story.corrections:
        found.append(("corrected", f"{story.corrections[incident.number]}, says a person"))
    return found


def _recovery(incident: Incident) -> str:
    parts = ", ".join(f"{name} {wording.duration(seconds)}" for name, seconds in incident.parts().items())
    if incident.recovery_s is not None:
        return f"{wording.duration(incident.recovery_s)}: {parts}"
    ended = incident.closed_by or "still open"
    return f"{ended}: {parts}" if parts else ended


def _numbers(story: Story) -> list[Line]:
    told = story.account
    lines = [Line("in numbers", is_heading=True)]
    if told.ettr is not None:
        without = (
            "" if told.ettr_without_queue is None else f" ({wording.percent(told.ettr_without_queue)} without queue)"
        )
        lines.append(Line(f"{wording.percent(told.ettr)} of {wording.duration(told.wall_s)}{without}", "ETTR", 1))
    if told.mttr_s is not None:
        median = "" if told.mttr_median_s is None else f", median {wording.duration(told.mttr_median_s)}"
        lines.append(Line(f"{wording.duration(told.mttr_s)}{median}", "MTTR", 1))
    if told.recomputed_steps:
        lines.append(Line(f"{told.recomputed_steps} steps, {wording.duration(told.lost_s)}", "trained twice", 1))
    lines.append(Line(str(len(told.incidents)), "incidents", 1))
    lines.append(Line(f"{told.interventions} by people ({REFERENCES['interventions']})", "interventions", 1))
    lines.append(_outcome(story))
    return lines


def _outcome(story: Story) -> Line:
    outcome = story.state.outcome
    if outcome is None:
        return Line(wording.phase(story.state), "now", 1)
    severity = Severity.NOTE if outcome.exit_code == 0 else Severity.URGENT
    return Line(f"{outcome.reason}: {outcome.text} (exit code {outcome.exit_code})", "outcome", 1, severity)


def story_object(story: Story, command: Sequence[str], proofs: Proofs) -> dict[str, Any]:
    """Times are unix seconds or, with `_s`, seconds; None where nothing is known."""
    outcome = story.state.outcome
    told = story.account
    return {
        "run": story.run,
        "command": list(command),
        "submitted_at": story.submitted_at,
        "until": story.until,
        "phase": story.state.phase.value,
        "ettr": told.ettr,
        "ettr_without_queue": told.ettr_without_queue,
        "mttr_s": told.mttr_s,
        "mttr_median_s": told.mttr_median_s,
        "recomputed_steps": told.recomputed_steps,
        "wall_s": told.wall_s,
        "queue_s": told.queue_s,
        "interventions": told.interventions,
        "references": REFERENCES,
        "attempts": [_attempt_object(each) for each in story.attempts],
        "incidents": [_incident_object(story, each, proofs.get(each.number, ())) for each in story.incidents],
        "orders": [
            {"at": order.at, "order": order.order.value, "who": order.who, "why": order.why} for order in story.orders
        ],
        "timeline": [_entry_object(each) for each in story.entries],
        "outcome": None
        if outcome is None
        else {"reason": outcome.reason, "text": outcome.text, "exit_code": outcome.exit_code},
    }


def _attempt_object(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "launched_at": attempt.launched_at,
        "resume": attempt.resume,
        "skipped": attempt.skipped,
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "ended_at": attempt.ended_at,
    }


def _incident_object(story: Story, incident: Incident, proofs: Sequence[str]) -> dict[str, Any]:
    verdict = story.verdicts.get(incident.number)
    return {
        "incident": incident.number,
        "kind": incident.kind.value,
        "attempt": incident.attempt,
        "step": incident.step,
        "detail": incident.detail,
        "since": incident.since,
        "noticed_at": incident.noticed_at,
        "reason": incident.reason,
        "corrected_reason": story.corrections.get(incident.number),
        "category": None if incident.category is None else incident.category.value,
        "decided_by": None if verdict is None else verdict.decided_by,
        "confidence": None if verdict is None else verdict.confidence,
        "explanation": None if verdict is None else verdict.explanation,
        "suggestion": None if verdict is None else verdict.suggestion,
        "suspects": [] if verdict is None else list(verdict.suspects),
        "evidence": list(proofs),
        "recovery_s": incident.recovery_s,
        "parts_s": incident.parts(),
        "closed_by": incident.closed_by,
    }


def _entry_object(entry: Entry) -> dict[str, Any]:
    return {"at": entry.at, "severity": entry.severity.value, "incident": entry.incident or None, "text": entry.text}
