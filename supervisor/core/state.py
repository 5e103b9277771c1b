# SPDX-License-Identifier: Apache-2.0
"""Everything that the core remembers of a run, rebuilt at any time by replaying the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from supervisor.core.decisions import Cordon, Diagnose, Finish, Launch, Probe, Stop
from supervisor.core.values import (
    FINAL_PHASES,
    BatchRange,
    Checkpoint,
    CutOff,
    Failure,
    PastFailure,
    Phase,
    Power,
    SpikeCase,
    WaitFor,
)

CHECKPOINTS_REMEMBERED = 64
FAILURES_REMEMBERED = 256
"""Or more, where the budgets count further."""

Answered: TypeAlias = Launch | Stop | Finish | Diagnose | Probe
"""The decisions that a phase waits for."""


@dataclass(frozen=True, slots=True)
class AfterStop:
    """What a person or a signal wanted the attempt stopped for; without one, a stop leads to a diagnosis."""

    what: str
    """`pause`, `leave` or `relaunch`."""
    told_by: str
    launch: Launch | None = None
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the core would do if it were allowed to; a person approves it."""

    text: str
    launch: Launch | None = None
    """To relaunch; None: to stop the attempt for the failure that is open."""
    power: Power = Power.RELAUNCH
    """What it lacks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended and what a person should do about it."""

    reason: str
    text: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class RunState:
    run: str
    phase: Phase
    attempt: int
    deadline: float
    """When the phase ends by itself (unix seconds); infinite in the final phases."""
    submitted_at: float
    node_count: int = 1
    attached: bool = False
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    pending: Answered | None = None
    """The decision whose answer the phase waits for; repeated by the shell until it comes."""
    is_left_alive: bool = False
    """The run was given up while the newest attempt could not be stopped; it is stopped before another is launched."""
    uncordoned: tuple[Cordon, ...] = ()
    """Cordons that nobody has confirmed yet."""
    imported: bool = False
    restored: bool = False
    resume_step: int | None = None
    """The step that the newest attempt restored, when it is known."""
    step: int | None = None
    """The newest step of the newest attempt; None before its first."""
    position: int | None = None
    newest_step: int | None = None
    """The largest step that any attempt has completed since the last rollback."""
    checkpoints: tuple[Checkpoint, ...] = ()
    cut_off: CutOff | None = None
    """Of the newest rollbacks; foreign checkpoints of these steps do not count before they are trained again."""
    skipped: tuple[BatchRange, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    failure: Failure | None = None
    """Of the open incident, until the first new step closes it."""
    incident: int = 0
    past: tuple[PastFailure, ...] = ()
    tries_without_progress: int = 0
    spike: SpikeCase | None = None
    rollbacks: int = 0
    waiting_for: WaitFor | None = None
    relaunch: Launch | None = None
    """What is launched when the wait is over."""
    after_stop: AfterStop | None = None
    proposal: Proposal | None = None
    frozen: bool = False
    interventions: int = 0
    outcome: Outcome | None = None

    @property
    def is_final(self) -> bool:
        return self.phase in FINAL_PHASES


Outstanding: TypeAlias = Answered | Cordon


def outstanding(state: RunState) -> tuple[Outstanding, ...]:
    """What the state still waits to hear of; the shell asks for it again after a restart and after a failed effect."""
    pending: tuple[Outstanding, ...] = () if state.pending is None else (state.pending,)
    return pending + state.uncordoned
