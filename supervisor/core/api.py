# SPDX-License-Identifier: Apache-2.0
"""What the rest of the project uses of the core."""

from supervisor.core import decisions, events
from supervisor.core.codec import CodecError, decode, decode_union, encode
from supervisor.core.machine import advance
from supervisor.core.policy import Budget, Policy
from supervisor.core.state import Outcome, Outstanding, RunState, outstanding
from supervisor.core.transitions import is_cut_off
from supervisor.core.values import (
    FINAL_PHASES,
    FOREIGN,
    LIVE_PHASES,
    Action,
    BatchRange,
    Category,
    Checkpoint,
    Failure,
    FailureKind,
    Mode,
    OrderKind,
    Phase,
    Power,
    Severity,
    Verdict,
    WaitFor,
)

__all__ = [
    "FINAL_PHASES",
    "FOREIGN",
    "LIVE_PHASES",
    "Action",
    "BatchRange",
    "Budget",
    "Category",
    "Checkpoint",
    "CodecError",
    "Failure",
    "FailureKind",
    "Mode",
    "OrderKind",
    "Outcome",
    "Outstanding",
    "Phase",
    "Policy",
    "Power",
    "RunState",
    "Severity",
    "Verdict",
    "WaitFor",
    "advance",
    "decisions",
    "decode",
    "decode_union",
    "encode",
    "events",
    "is_cut_off",
    "outstanding",
]
