# SPDX-License-Identifier: Apache-2.0
"""What the command line sees of a run: journal records and a view of where it stands."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.api import Policy, RunState, decisions, events


class ControllerError(Exception):
    """The run cannot be supervised as asked; the message names the thing, the value and the next step."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One line of the journal: an event that changed something and the decisions that followed, or a policy."""

    at: float
    event: events.Event | None = None
    decisions: tuple[decisions.Decision, ...] = ()
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class LiveNumbers:
    """What is too quick for the journal; None where nobody has reported it."""

    loss: float | None = None
    tokens_per_s: float | None = None
    step: int | None = None
    step_s: float | None = None
    """Median duration of the last steps."""
    pause: str | None = None
    """The known pause that ranks are in."""
    hang_deadline_s: float | None = None
    checkpoint_stall_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """Where a run stands at `at`; everything that `supervisor status` prints."""

    at: float
    state: RunState
    numbers: LiveNumbers
    ettr: float | None
    """Time of steps that were kept over wall time since the first submission, queue time in it; None before a step."""
    mttr_s: float | None
    incidents: int
    interventions: int
    controller: str
    """`pid N on HOST` of the living controller, or `none`."""
    folder: str
