# SPDX-License-Identifier: Apache-2.0
"""The values of a diagnosis: what goes in, what comes out, and the closed sets of reasons and actions.

The category follows from the reason alone, so two diagnoses with one reason can never disagree about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from supervisor.diagnosis.hang_evidence import RankEvidence


class Category(str, Enum):
    """The four kinds of cause; the first three are those of the Acme study (arXiv 2403.07648, table 3)."""

    INFRASTRUCTURE = "infrastructure"
    FRAMEWORK = "framework"
    SCRIPT = "script"
    OTHER = "other"


class Action(str, Enum):
    """What to do about a failure; `fix_user` means that a restart cannot help and a person has to change something."""

    FIX_USER = "fix_user"
    RESTART_SAME = "restart_same"
    WAIT_AND_RETRY = "wait_and_retry"
    ISOLATE_NODE_AND_RESTART = "isolate_node_and_restart"
    ROLLBACK = "rollback"


UNKNOWN = "Unknown"

_BY_CATEGORY: Mapping[Category, tuple[str, ...]] = {
    Category.INFRASTRUCTURE: (
        "NVLinkError",
        "CUDAError",
        "NodeFailure",
        "ECCError",
        "NetworkError",
        "ConnectionError",
        "S3StorageError",
        "NCCLTimeoutError",
        "NCCLRemoteError",
        "GPUFellOffBus",
        "GSPError",
        "ThermalPower",
        "NCCLSystemError",
    ),
    Category.FRAMEWORK: (
        "DataloaderKilled",
        "AttributeError",
        "OutOfMemoryError",
        "RuntimeError",
        "AssertionError",
        "ValueError",
        "ZeroDivisionError",
        "ModelLoadingError",
        "DatasetLoadingError",
        "CheckpointCorruption",
    ),
    Category.SCRIPT: (
        "FileNotFoundError",
        "OSError",
        "TypeError",
        "NameError",
        "PermissionError",
        "ImportError",
        "KeyError",
        "SyntaxError",
        "ArgumentError",
        "CalledProcessError",
        "IndexError",
    ),
    Category.OTHER: ("LossNaN", "LossSpike", "SilentHang", "ExternalStop", UNKNOWN),
}

CATEGORY_OF_REASON: Mapping[str, Category] = MappingProxyType(
    {reason: category for category, reasons in _BY_CATEGORY.items() for reason in reasons}
)
"""Every reason that a diagnosis may name: the 29 of arXiv 2403.07648 and ten of our own."""


class Stream(str, Enum):
    """Where the lines of a source come from."""

    STDOUT = "stdout"
    STDERR = "stderr"
    LAUNCHER = "launcher"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True)
class LogSource:
    """One log: `name` is the path that a person is shown; `lines` is a path to read or the lines themselves.

    With `last_bytes` only so much at the end of a file is read, and its lines are counted from there.
    """

    name: str
    lines: Path | Iterable[str]
    rank: int | None = None
    node: str | None = None
    stream: Stream = Stream.STDOUT
    last_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank's process ended: `exit_code` is negative for a signal, None while it runs; `at` is epoch seconds."""

    rank: int
    node: str
    exit_code: int | None
    at: float | None = None
    local_rank: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """A run without a step for `silent_s` seconds; `ranks` is what was kept of each rank before it was stopped.

    `culprit` is the rank that the detector found to stand out, and `folder` is where the evidence lies.
    """

    step: int | None
    silent_s: float
    ranks: Mapping[int, RankEvidence] = field(default_factory=dict)
    culprit: int | None = None
    folder: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """A line that proves the diagnosis, as it stands in the file; lines are counted from 1."""

    file: str
    line_number: int
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause, one culprit where the logs name it, and one action.

    `decided_by` is `signature:NAME` or `none`; `service` names the outside service that failed; `fatal` is true for
    kernel evidence that condemns the node without a probe; `also_seen` are reasons judged to be symptoms, and
    `symptom_notes` say of each why.
    """

    reason: str
    action: Action
    confidence: float
    explanation: str
    suggestion: str
    decided_by: str = "none"
    node: str | None = None
    rank: int | None = None
    also_seen: tuple[str, ...] = ()
    symptom_notes: tuple[str, ...] = ()
    evidence: tuple[EvidenceLine, ...] = ()
    service: str | None = None
    fatal: bool = False

    @property
    def category(self) -> Category:
        """The category of the reason."""
        return CATEGORY_OF_REASON[self.reason]

    @property
    def found_failure(self) -> bool:
        """False when nothing in the logs or exit codes speaks of a failure."""
        return self.decided_by != "none"
