# SPDX-License-Identifier: Apache-2.0
"""Writes a diagnosis for a person: the cause and the action first, then proofs, then what was left aside and why."""

from __future__ import annotations

from supervisor.diagnosis.model import Action, Diagnosis

_ACTION_WORDS = {
    Action.FIX_USER: "stop and correct it; a restart cannot help",
    Action.RESTART_SAME: "restart on the same nodes",
    Action.WAIT_AND_RETRY: "wait until the service or the storage is back, then restart",
    Action.ISOLATE_NODE_AND_RESTART: "take the node out and restart on others",
    Action.ROLLBACK: "resume from an earlier checkpoint",
}
_LONGEST_PROOF_CHARS = 240


def headline(diagnosis: Diagnosis) -> str:
    """The cause, whom it concerns, and the action, in one line."""
    if not diagnosis.found_failure:
        return diagnosis.explanation
    where = [f"rank {diagnosis.rank}"] if diagnosis.rank is not None else []
    where += [f"node {diagnosis.node}"] if diagnosis.node is not None else []
    where += [f"service {diagnosis.service}"] if diagnosis.service is not None else []
    place = f" ({', '.join(where)})" if where else ""
    return (
        f"{diagnosis.reason}{place}: {diagnosis.explanation} -> {_ACTION_WORDS[diagnosis.action]}"
        f" [{diagnosis.action.value}, {diagnosis.category.value}, confidence {diagnosis.confidence:.2f}]"
    )


def render(diagnosis: Diagnosis) -> str:
    """The whole answer as text, without a newline at its end."""
    lines = [headline(diagnosis)]
    if diagnosis.evidence:
        lines.append("Proof:")
        lines += [
            f"  {proof.file}:{proof.line_number}: {proof.text.strip()[:_LONGEST_PROOF_CHARS]}"
            for proof in diagnosis.evidence
        ]
    if diagnosis.symptom_notes:
        lines.append("Also seen, and not the cause:")
        lines += [f"  {note}" for note in diagnosis.symptom_notes]
    lines.append(f"What to do: {diagnosis.suggestion}")
    if diagnosis.found_failure:
        lines.append(f"Decided by {diagnosis.decided_by}")
    return "\n".join(lines)
