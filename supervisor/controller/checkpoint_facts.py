# SPDX-License-Identifier: Apache-2.0
"""What the checkpoint library's event lines mean to the core and to a person. Lines of unknown kinds mean nothing."""

from __future__ import annotations

from typing import Any

from supervisor.core.api import Checkpoint, events


def event_of(fact: dict[str, Any], attempt: int, at: float) -> events.Event | None:
    """The event of a `committed` or `restored` line; of the latter only rank 0's, since all ranks restore the same."""
    if fact.get("event") == "committed" and isinstance(fact.get("step"), int):
        healthy = fact.get("healthy")
        checkpoint = Checkpoint(
            step=fact["step"],
            attempt=int(fact.get("checkpoint_attempt") or attempt),
            position=fact.get("position"),
            healthy=healthy if isinstance(healthy, bool) else None,
        )
        return events.CheckpointCommitted(float(fact.get("at", at)), attempt, checkpoint)
    if fact.get("event") == "restored" and fact.get("rank") == 0:
        note = "".join(
            f"checkpoint of step {damaged.get('step')} is damaged ({damaged.get('why')}) and was set aside; "
            for damaged in fact.get("set_aside") or ()
        )
        step = fact.get("step")
        if note:
            note += "training starts from nothing" if step is None else f"step {step} was restored instead"
        return events.AttemptRestored(float(fact.get("at", at)), attempt, step, note)
    return None


def complaint_of(fact: dict[str, Any]) -> str | None:
    """What a person should hear of a save that went wrong."""
    if fact.get("event") == "save_failed":
        return f"the checkpoint of step {fact.get('step')} was not saved: {fact.get('message')}; the older ones stand"
    if fact.get("event") == "commit_refused":
        return f"the checkpoint of step {fact.get('step')} was refused: {fact.get('message')}"
    return None
