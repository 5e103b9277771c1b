# SPDX-License-Identifier: Apache-2.0
"""The words of the core: closed sets and small frozen values that events, decisions and the state are made of."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Phase(str, enum.Enum):
    """Where a run stands. Every phase but the last two has a deadline and leaves by it."""

    LAUNCHING = "LAUNCHING"
    """An attempt was ordered and has not completed a step yet."""
    TRAINING = "TRAINING"
    """Steps are being completed, or the ranks are inside a known pause."""
    STOPPING = "STOPPING"
    """The attempt was told to end and some of it may still be alive."""
    DIAGNOSING = "DIAGNOSING"
    """Nothing runs; the cause is being looked for."""
    PROBING = "PROBING"
    """Nothing runs; the attempt's nodes are being tested in pairs."""
    WAITING = "WAITING"
    """Nothing may be launched yet; `WaitFor` says what for."""
    SUCCEEDED = "SUCCEEDED"
    """The training script completed."""
    ABANDONED = "ABANDONED"
    """The run was given up or told to stop; it says why, and `supervisor run` takes it up again."""


FINAL_PHASES = frozenset({Phase.SUCCEEDED, Phase.ABANDONED})
LIVE_PHASES = frozenset({Phase.LAUNCHING, Phase.TRAINING, Phase.STOPPING})
"""Phases in which processes of the newest attempt may be alive."""


class WaitFor(str, enum.Enum):
    RETRY = "the next try"
    SERVICE = "a service to come back"
    NODES = "nodes"
    PERSON = "a person"
    ENDING = "the old attempt to end"


class FailureKind(str, enum.Enum):
    """How a failure showed itself, before anybody knows why."""

    EXIT = "exit"
    HANG = "hang"
    SPIKE = "loss spike"
    NAN = "NaN loss"
    LOST = "agents silent"
    LAUNCH = "launch failed"


class Category(str, enum.Enum):
    """The paper's three categories (arXiv 2403.07648, table 3), and what fits none of them."""

    INFRASTRUCTURE = "infrastructure"
    FRAMEWORK = "framework"
    SCRIPT = "script"
    OTHER = "other"


class Action(str, enum.Enum):
    FIX_USER = "fix_user"
    RESTART_SAME = "restart_same"
    WAIT_AND_RETRY = "wait_and_retry"
    ISOLATE_NODE_AND_RESTART = "isolate_node_and_restart"
    ROLLBACK = "rollback"


class Mode(str, enum.Enum):
    OBSERVE = "observe"
    ADVISE = "advise"
    ACT = "act"


class Power(str, enum.Enum):
    """What a person may grant one by one."""

    STOP = "stop"
    RELAUNCH = "relaunch"
    ROLLBACK = "rollback"
    ISOLATE = "isolate"


class Grant(str, enum.Enum):
    """What the core may do with a power right now."""

    ACT = "act"
    ASK = "ask"
    TELL = "tell"


class OrderKind(str, enum.Enum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    APPROVE = "approve"
    ROLLBACK = "rollback"
    SKIP = "skip"
    REPLACE = "replace"
    FREEZE = "freeze"
    THAW = "thaw"
    CORRECT = "correct"


class Severity(str, enum.Enum):
    NOTE = "note"
    WARNING = "warning"
    URGENT = "urgent"


@dataclass(frozen=True, slots=True, order=True)
class BatchRange:
    """Batches `first` to `last`, both included, by batch index."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"batch range {self.first}-{self.last}: expected 0 <= first <= last")


FOREIGN = 0
"""In the place of the attempt of a checkpoint that does not tell it; attempts count from 1."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """Steps after `resume_step`, up to `newest_step`, that were trained before the run went back to `resume_step`."""

    resume_step: int
    newest_step: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint as the core knows it; `position` is the index of the batch that comes next.

    `attempt` is FOREIGN for one that the script keeps in its own way, which tells no attempt.
    """

    step: int
    attempt: int
    position: int | None = None
    healthy: bool | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a diagnosis means for the core; the proving lines stay with the incident's files."""

    reason: str
    category: Category
    action: Action
    explanation: str = ""
    suggestion: str = ""
    confidence: float = 0.0
    decided_by: str = "none"
    suspects: tuple[str, ...] = ()
    """Nodes, most suspicious first."""
    fatal: bool = False
    """Kernel evidence condemns the suspects without a probe."""
    service: str | None = None
    """The outside service (wandb, a hub) that failed, which is neither a bad node nor a script bug."""
    rank: int | None = None


UNKNOWN = Verdict(
    reason="Unknown",
    category=Category.OTHER,
    action=Action.RESTART_SAME,
    explanation="no diagnosis was reached in time",
    suggestion="read the logs of the attempt",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of the incident that is open."""

    incident: int
    attempt: int
    kind: FailureKind
    since: float
    """When it began, as far as known: exit of the rank, last step before a hang, onset of a spike."""
    noticed_at: float
    step: int | None
    detail: str
    trained: bool = True
    """The attempt had left LAUNCHING; a script without steps has no step even then."""
    suspects: tuple[str, ...] = ()
    onset_position: int | None = None
    last_position: int | None = None
    verdict: Verdict | None = None
    rank: int | None = None
    """Of a hang, the rank that stood out to the detector."""


@dataclass(frozen=True, slots=True)
class PastFailure:
    """What budgets and the repeat rule remember of an incident."""

    at: float
    reason: str
    category: Category
    step: int | None
    attempt: int
    trained: bool = True


@dataclass(frozen=True, slots=True)
class SpikeCase:
    """A loss spike that was answered by going back; it is the data's when it comes back at the same batches."""

    onset_position: int
    last_position: int
    skipped: BatchRange | None = None
    """None while its batches are replayed."""
