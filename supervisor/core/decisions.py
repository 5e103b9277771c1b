# SPDX-License-Identifier: Apache-2.0
"""What the core wants done, in the imperative. Each is idempotent: the shell repeats it until its event arrives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from supervisor.core.values import BatchRange, Checkpoint, Severity


@dataclass(frozen=True, slots=True)
class Launch:
    """Write the fence, then start the attempt. Answered by AttemptStarted or LaunchFailed."""

    attempt: int
    resume: Checkpoint | None = None
    """None: the newest visible checkpoint, or nothing when `from_nothing`."""
    from_nothing: bool = False
    skipped: tuple[BatchRange, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """End the attempt's processes. Answered by AttemptEnded."""

    attempt: int
    incident: int
    grace_s: float
    evidence: bool
    """Keep stacks and flight-recorder dumps of every rank before anything is killed."""


@dataclass(frozen=True, slots=True)
class KeepEvidence:
    """Keep stacks and flight-recorder dumps of every rank and let the attempt be. Not answered."""

    attempt: int
    incident: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Let the ranks finish the step, save and leave. Answered by AttemptEnded."""

    attempt: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class Diagnose:
    """Answered by Diagnosed."""

    attempt: int
    incident: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Answered by Probed."""

    attempt: int
    incident: int
    suspects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cordon:
    """Answered by NodeCordoned."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell a person: what happened, why, and what comes next. Not answered."""

    severity: Severity
    text: str
    incident: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """The run is over: the agents may leave. Not answered."""


Decision: TypeAlias = Launch | Stop | KeepEvidence | Finish | Diagnose | Probe | Cordon | Notify | Release
