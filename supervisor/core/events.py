# SPDX-License-Identifier: Apache-2.0
"""What can happen to a run: facts in the past tense, each with its time, most with the attempt that they speak of.

`at` is unix seconds on the controller's clock. An event of an older attempt changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from supervisor.core.values import Checkpoint, FailureKind, OrderKind, Verdict


@dataclass(frozen=True, slots=True)
class RunSubmitted:
    at: float
    run: str
    nodes: int
    newest_attempt: int = 0
    """The largest attempt that the fence and the manifests of the run's store know."""
    attached: bool = False
    """The launch was started by somebody else and is only watched."""


@dataclass(frozen=True, slots=True)
class ControllerReturned:
    """A new controller process took the run over from the journal; deadlines start afresh, since nobody watched."""

    at: float


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    at: float
    attempt: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """Nothing was started; `permanent` means that another try of the same cannot work (no such program)."""

    at: float
    attempt: int
    message: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class RanksImported:
    """Every rank of the attempt has reached the training client: interpreters are up and imports are done."""

    at: float
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptRestored:
    """The ranks loaded the checkpoint of `step`, or started from nothing (None)."""

    at: float
    attempt: int
    step: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ProgressSampled:
    """The attempt is well by every detector; a sample, not every step. `step` is None for scripts without steps."""

    at: float
    attempt: int
    step: int | None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    at: float
    attempt: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class RankFailed:
    at: float
    attempt: int
    rank: int
    node: str
    exit_code: int | None
    since: float


@dataclass(frozen=True, slots=True)
class HangFound:
    at: float
    attempt: int
    step: int | None
    since: float
    detail: str
    suspects: tuple[str, ...] = ()
    rank: int | None = None
    """The one that stands out by more than its silence."""


@dataclass(frozen=True, slots=True)
class LossSpiked:
    at: float
    attempt: int
    kind: FailureKind
    """SPIKE or NAN."""
    onset_step: int
    onset_position: int
    last_position: int
    since: float
    detail: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """No process of the attempt is alive any more."""

    at: float
    attempt: int
    succeeded: bool
    exit_code: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosed:
    at: float
    attempt: int
    verdict: Verdict
    checkpoints: tuple[Checkpoint, ...] | None = None
    """What the store holds now, oldest first; None when the run's checkpoints cannot be listed."""
    newest_attempt: int = 0
    jitter: float = 0.0
    """Drawn by the shell from [0, 1); spreads the relaunch delay so that many runs do not return together."""


@dataclass(frozen=True, slots=True)
class Probed:
    at: float
    attempt: int
    faulty: tuple[str, ...]
    undecided: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NodeCordoned:
    at: float
    node: str


@dataclass(frozen=True, slots=True)
class OrderGiven:
    """A person's order; counted as an intervention."""

    at: float
    order: OrderKind
    who: str
    why: str = ""
    step: int | None = None
    first: int | None = None
    last: int | None = None
    node: str | None = None
    incident: int | None = None
    reason: str | None = None
    checkpoints: tuple[Checkpoint, ...] | None = None
    """What the store holds now, for an order that goes back; retention may have pruned what is remembered."""


@dataclass(frozen=True, slots=True)
class StopSignalled:
    """The supervisor itself was told to stop: pre-emption or Ctrl-C. The second time means at once."""

    at: float
    signal: str
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class TimePassed:
    at: float


Event: TypeAlias = (
    RunSubmitted
    | ControllerReturned
    | AttemptStarted
    | LaunchFailed
    | RanksImported
    | AttemptRestored
    | ProgressSampled
    | CheckpointCommitted
    | RankFailed
    | HangFound
    | LossSpiked
    | AttemptEnded
    | Diagnosed
    | Probed
    | NodeCordoned
    | OrderGiven
    | StopSignalled
    | TimePassed
)
EVENTS: dict[str, type[Event]] = {
    cls.__name__: cls
    for cls in (
        RunSubmitted,
        ControllerReturned,
        AttemptStarted,
        LaunchFailed,
        RanksImported,
        AttemptRestored,
        ProgressSampled,
        CheckpointCommitted,
        RankFailed,
        HangFound,
        LossSpiked,
        AttemptEnded,
        Diagnosed,
        Probed,
        NodeCordoned,
        OrderGiven,
        StopSignalled,
        TimePassed,
    )
}
