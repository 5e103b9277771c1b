# SPDX-License-Identifier: Apache-2.0
"""What node agents and the controller say to each other: reports go up, orders come down, both closed lists.

    agent --- POST /v1/nodes/<node>/reports   {version, node, agent, sequence, reports: [...]} --> controller
    agent --- GET  /v1/nodes/<node>/orders?after=K&wait=20   (long poll) ------------------------> controller

An order may arrive twice (the controller restarted) and is idempotent by its attempt; a report may be sent twice and
carries a sequence number for that. Times are unix seconds of the agent's host unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from supervisor.core import codec

PROTOCOL_VERSION = 1
CONTROLLER_FILE = "controller.json"
"""Address, certificate hash and token of the controller, in the run folder, mode 0600; read again after a loss."""


LAST_WORDS_FILE = "last-words"
"""In the agent's own folder, `agents/<node>`: why it cannot work there, a line for a person."""


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank ended; `exit_code` is negative for a signal and None when nobody could read it."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int | None
    at: float
    finished: bool = False
    """The client marked a clean end before the process went, so a later abort in clean-up is not a failure."""
    by_us: bool = False
    """The agent had already signalled it when it ended."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One optimizer step as the lowest rank of a node reported it; `position` is the index of its batch."""

    step: int
    position: int | None
    at: float
    loss: float | None
    grad_norm: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class RankStatus:
    """A rank at one poll; `idle_s` counts from its last sign of life on its own host's monotonic clock."""

    rank: int
    local_rank: int
    pid: int
    step: int | None
    idle_s: float
    phase: str | None
    phase_s: float
    alive: bool
    process_state: str | None
    dropped: int
    instrumented: bool


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    attempt: int
    at: float
    launcher_pid: int
    warm: bool
    notes: tuple[str, ...] = ()
    """Lines for a person: what this launch cannot have, and why."""


@dataclass(frozen=True, slots=True)
class LaunchRefused:
    """The launch could not even be started (no such program, folder gone); nothing is running."""

    attempt: int
    at: float
    message: str
    permanent: bool = True
    """Another try of the same cannot work; false while the node lacks room, memory or processes."""


@dataclass(frozen=True, slots=True)
class StepsSeen:
    attempt: int
    at: float
    source: str
    """`client` (exact) or `log` (read from the output by pattern)."""
    rows: tuple[StepRow, ...]


@dataclass(frozen=True, slots=True)
class RanksPolled:
    attempt: int
    at: float
    ranks: tuple[RankStatus, ...]


@dataclass(frozen=True, slots=True)
class RankExited:
    attempt: int
    at: float
    exit: RankExit


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The launcher and every rank of this node are gone."""

    attempt: int
    at: float
    exit_code: int | None
    ranks: tuple[RankExit, ...]
    by_us: bool


@dataclass(frozen=True, slots=True)
class CheckpointFact:
    """A line of the checkpoint library's event file, as it stands there."""

    attempt: int
    at: float
    fact: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EvidenceKept:
    """Stacks, flight-recorder dumps and process states were written below the run folder."""

    attempt: int
    at: float
    incident: int
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remark:
    """A line about the node for a person, of no attempt (0)."""

    attempt: int
    at: float
    text: str


Report: TypeAlias = (
    AttemptBegan
    | LaunchRefused
    | StepsSeen
    | RanksPolled
    | RankExited
    | AttemptEnded
    | CheckpointFact
    | EvidenceKept
    | Remark
)
REPORTS: dict[str, type[Report]] = {
    cls.__name__: cls
    for cls in (
        AttemptBegan,
        LaunchRefused,
        StepsSeen,
        RanksPolled,
        RankExited,
        AttemptEnded,
        CheckpointFact,
        EvidenceKept,
        Remark,
    )
}


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One attempt on one node."""

    command: tuple[str, ...]
    working_folder: str
    environment: tuple[tuple[str, str], ...]
    """Added to the agent's own: the attempt's number, skipped batches, fence and resume step among them."""
    attempt_folder: str
    """Where the launcher's output and the ranks' logs go; made by the agent."""
    warm: str = "launcher"
    """`off`, `launcher` (a standby torchrun with torch imported) or `ranks` (ranks forked from it as well)."""
    log_limit_bytes: int = 256 * 2**20
    """Of each rank's log file kept in plain form; older parts are compressed away."""
    step_pattern: str | None = None
    """The user's regular expression for step and loss in the output of an unmodified script."""
    report_interval_s: float = 1.0


@dataclass(frozen=True, slots=True)
class StartAttempt:
    attempt: int
    spec: LaunchSpec


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """End every process of the attempt: SIGTERM, SIGKILL after `grace_s`; with `evidence` stacks are taken first."""

    attempt: int
    grace_s: float
    evidence: bool
    incident: int
    evidence_folder: str
    evidence_limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class FinishAttempt:
    """Ask the ranks to finish a step, save and leave; what still runs after `grace_s` is stopped as by StopAttempt."""

    attempt: int
    grace_s: float
    at_step: int | None = None
    """None: the agent chooses a step just ahead of its ranks (right only while one node has all ranks)."""


@dataclass(frozen=True, slots=True)
class KeepEvidence:
    """Take stacks and flight-recorder states of the running attempt without stopping it."""

    attempt: int
    incident: int
    evidence_folder: str
    evidence_limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class MarkLossHealth:
    attempt: int
    healthy: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """The run is over: end the agent (and its standby process) once no attempt is alive."""


Order: TypeAlias = StartAttempt | StopAttempt | FinishAttempt | KeepEvidence | MarkLossHealth | Leave
ORDERS: dict[str, type[Order]] = {
    cls.__name__: cls for cls in (StartAttempt, StopAttempt, FinishAttempt, KeepEvidence, MarkLossHealth, Leave)
}


@dataclass(frozen=True, slots=True)
class ReportBatch:
    """Body of a POST; the answer is `{"acknowledged": sequence}`."""

    version: int
    node: str
    agent: str
    """New for each agent process, so that a restarted one starts its sequence afresh."""
    sequence: int
    attempt: int
    """Newest attempt that this agent knows, 0 for none."""
    attempt_alive: bool
    reports: tuple[dict[str, Any], ...]


def decode_report(raw: object) -> Report:
    """Raises codec.CodecError."""
    return codec.decode_union(REPORTS, raw)


def decode_order(raw: object) -> Order:
    """Raises codec.CodecError."""
    return codec.decode_union(ORDERS, raw)
