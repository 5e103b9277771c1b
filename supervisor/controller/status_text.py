# SPDX-License-Identifier: Apache-2.0
"""Where a run stands: as JSON, as plain `key: value` lines, and as the rows of a table. Pure.

The keys of `status_object` are an interface: scripts read them. A key may be added, none changes its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from supervisor.controller import wording
from supervisor.controller.api import RunView
from supervisor.core.api import Checkpoint, Failure, RunState

REFERENCES = {
    "interventions": "Llama 3: 3 significant ones in 419 interruptions (arXiv 2407.21783); "
    "Acme: 90 % fewer than by hand (arXiv 2403.07648)",
}
"""What others have reached, to be read beside a run's own figures."""


def status_object(view: RunView) -> dict[str, Any]:
    """Times are unix seconds or, with `_s`, seconds; None where nothing is known."""
    state, numbers = view.state, view.numbers
    return {
        "run": state.run,
        "at": view.at,
        "phase": state.phase.value,
        "waiting_for": None if state.waiting_for is None else state.waiting_for.value,
        "phase_deadline": state.deadline if math.isfinite(state.deadline) else None,
        "attempt": state.attempt,
        "step": state.step if numbers.step is None else numbers.step,
        "resume_step": state.resume_step,
        "loss": _finite(numbers.loss),
        "tokens_per_s": _finite(numbers.tokens_per_s),
        "step_s": _finite(numbers.step_s),
        "hang_deadline_s": _finite(numbers.hang_deadline_s),
        "checkpoint_stall_s": _finite(numbers.checkpoint_stall_s),
        "pause": numbers.pause,
        "last_checkpoint": _checkpoint(state.checkpoints),
        "skipped": [[span.first, span.last] for span in state.skipped],
        "rollbacks": state.rollbacks,
        "nodes": list(state.nodes),
        "excluded": list(state.excluded),
        "environment": dict(state.environment),
        "ettr": view.ettr,
        "mttr_s": view.mttr_s,
        "incidents": view.incidents,
        "interventions": view.interventions,
        "references": REFERENCES,
        "open_incident": None if state.failure is None else _failure(state.failure),
        "proposal": None if state.proposal is None else state.proposal.text,
        "frozen": state.frozen,
        "attached": state.attached,
        "outcome": _outcome(state),
        "submitted_at": state.submitted_at,
        "controller": None if view.controller == "none" else view.controller,
        "folder": view.folder,
    }


def status_rows(view: RunView) -> list[tuple[str, str]]:
    """Key and value of all that is worth a line, in a fixed order; keys have no spaces."""
    state, numbers = view.state, view.numbers
    step = state.step if numbers.step is None else numbers.step
    rows: list[tuple[str, str | None]] = [
        ("run", state.run),
        ("phase", wording.phase(state)),
        ("attempt", str(state.attempt)),
        ("step", "none yet" if step is None else str(step)),
        ("loss", None if numbers.loss is None else f"{numbers.loss:.4g}"),
        ("throughput", None if numbers.tokens_per_s is None else f"{wording.quantity(numbers.tokens_per_s)} tokens/s"),
        ("step_time", None if numbers.step_s is None else f"{numbers.step_s:.3g} s"),
        ("hang_deadline", None if numbers.hang_deadline_s is None else wording.duration(numbers.hang_deadline_s)),
        ("pause", numbers.pause),
        ("last_checkpoint", _checkpoint_text(state.checkpoints)),
        ("checkpoint_stall", None if numbers.checkpoint_stall_s is None else f"{numbers.checkpoint_stall_s:.3g} s"),
        ("skipped_batches", wording.ranges(state.skipped) or None),
        ("rollbacks", str(state.rollbacks) if state.rollbacks else None),
        ("nodes", ", ".join(state.nodes) or None),
        ("excluded_nodes", ", ".join(state.excluded) or None),
        ("switched_off", ", ".join(f"{key}={value}" for key, value in state.environment) or None),
        ("ETTR", None if view.ettr is None else f"{wording.percent(view.ettr)} (queue time counted)"),
        ("MTTR", None if view.mttr_s is None else wording.duration(view.mttr_s)),
        ("incidents", str(view.incidents)),
        ("interventions", f"{view.interventions} by people ({REFERENCES['interventions']})"),
        ("open_incident", None if state.failure is None else _failure_text(state.failure)),
        ("proposal", None if state.proposal is None else f"{state.proposal.text}; `supervisor approve` does it"),
        ("frozen", "yes: nothing is stopped, launched or isolated until `supervisor thaw`" if state.frozen else None),
        ("outcome", None if state.outcome is None else f"{state.outcome.reason}: {state.outcome.text}"),
        ("submitted", wording.date_and_clock(state.submitted_at)),
        ("controller", _controller_text(view)),
        ("folder", view.folder),
    ]
    return [(key, value) for key, value in rows if value is not None]


def plain_lines(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{key}: {wording.printable(value)}" for key, value in rows]


def _finite(number: float | None) -> float | None:
    """JSON has no NaN."""
    return number if number is not None and math.isfinite(number) else None


def _checkpoint(checkpoints: tuple[Checkpoint, ...]) -> dict[str, Any] | None:
    if not checkpoints:
        return None
    newest = checkpoints[-1]
    return {
        "step": newest.step,
        "attempt": newest.attempt,
        "position": newest.position,
        "healthy": newest.healthy,
    }


def _checkpoint_text(checkpoints: tuple[Checkpoint, ...]) -> str:
    if not checkpoints:
        return "none committed yet"
    newest = checkpoints[-1]
    health = ", its loss is not healthy" if newest.healthy is False else ""
    return f"step {newest.step} (attempt {newest.attempt}{health})"


def _failure(failure: Failure) -> dict[str, Any]:
    verdict = failure.verdict
    return {
        "incident": failure.incident,
        "attempt": failure.attempt,
        "kind": failure.kind.value,
        "since": failure.since,
        "noticed_at": failure.noticed_at,
        "step": failure.step,
        "detail": failure.detail,
        "reason": None if verdict is None else verdict.reason,
        "category": None if verdict is None else verdict.category.value,
    }


def _failure_text(failure: Failure) -> str:
    reason = "" if failure.verdict is None else f", {failure.verdict.reason}"
    return f"{failure.incident} ({failure.kind.value}{reason}): {failure.detail}"


def _outcome(state: RunState) -> dict[str, Any] | None:
    outcome = state.outcome
    if outcome is None:
        return None
    return {"reason": outcome.reason, "text": outcome.text, "exit_code": outcome.exit_code}


def _controller_text(view: RunView) -> str:
    if view.controller != "none":
        return view.controller
    return "none" if view.state.is_final else "none: nobody supervises the run; `supervisor run` takes it up again"
