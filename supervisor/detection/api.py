# SPDX-License-Identifier: Apache-2.0
"""What the rest of the supervisor uses of detection: pure functions from (state, sample) to (state, verdict).

The invariant: no clock and no I/O in here; times come in with the samples, so a replay gives the same verdicts.
"""

from __future__ import annotations

from supervisor.detection.hang import HangState, learned_deadline, observe_progress, pause_deadline, relaunched
from supervisor.detection.patterns import Pattern, PatternError, StepParser, StepReading, custom_pattern
from supervisor.detection.progress import HangKind, HangPolicy, HangVerdict, ProgressSample, RankProgress
from supervisor.detection.spike import (
    LossSample,
    NormWarning,
    SpikeKind,
    SpikeState,
    SpikeVerdict,
    healthy,
    observe_loss,
    rewound,
    same_place,
    warm,
)

__all__ = [
    "HangKind",
    "HangPolicy",
    "HangState",
    "HangVerdict",
    "LossSample",
    "NormWarning",
    "Pattern",
    "PatternError",
    "ProgressSample",
    "RankProgress",
    "SpikeKind",
    "SpikeState",
    "SpikeVerdict",
    "StepParser",
    "StepReading",
    "custom_pattern",
    "healthy",
    "learned_deadline",
    "observe_loss",
    "observe_progress",
    "pause_deadline",
    "relaunched",
    "rewound",
    "same_place",
    "warm",
]
