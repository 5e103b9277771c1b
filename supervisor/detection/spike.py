# SPDX-License-Identifier: Apache-2.0
"""Notices a loss that has become NaN, or has jumped and stays up.

The invariant: an outlying loss never enters the baseline, so a spike cannot hide itself; and a spike that heals within
a few steps is no verdict, since most do (BLOOM's chronicles) and a rollback costs more than they do.

Verdicts and warnings are given again with every loss for as long as they hold; `onset_step` tells one episode from the
next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from supervisor.detection import baseline

HISTORY = 1024
"""Accepted losses that are kept, so that a rollback of hundreds of steps leaves enough of them for a baseline."""

REWIND_STEPS = 64
"""A step that is so much older than the newest is a restart that nobody announced, not a late line of another rank."""

RECENT = 24
"""Newest steps whose outliers are remembered."""

EPISODE_GAP = 8
"""Steps without an outlier that end an episode."""

EPISODE_STEPS = 256
"""Steps after which a raised loss is taken for the run's new level (nobody rolled back, so it is accepted)."""

STRONG_SIGMAS, STRONG_RISE, STRONG_WITHIN = 6.0, 0.2, 8
STRONG_NEEDED, STRONG_NEEDED_WITH_NORM = 5, 4
WEAK_SIGMAS, WEAK_RISE, WEAK_NEEDED = 3.0, 0.15, 20
"""Weak outliers count within the RECENT steps."""
EXTREME_SIGMAS, EXTREME_RISE, EXTREME_NEEDED = 30.0, 1.5, 2
"""Extreme outliers count in a row."""
NORM_SIGMAS, NORM_RATIO, NORM_NEEDED = 6.0, 3.0, 2
"""Gradient norm beyond which a step is an excursion, and how many within STRONG_WITHIN steps are worth a warning."""


class SpikeKind(str, Enum):
    """What is wrong with the loss."""

    NAN = "nan"
    SPIKE = "spike"


class Level(int, Enum):
    """How far a loss is above the baseline; each level includes those below it."""

    NORMAL = 0
    WEAK = 1
    STRONG = 2
    EXTREME = 3
    NOT_FINITE = 4


@dataclass(frozen=True, slots=True)
class LossSample:
    """One step's numbers as reported by a rank or read from a log line."""

    step: int
    loss: float | None
    position: int | None = None
    """Index of the batch that the step trained on."""
    grad_norm: float | None = None


@dataclass(frozen=True, slots=True)
class SpikeVerdict:
    """The loss is lost unless training goes back before `onset_step`."""

    kind: SpikeKind
    onset_step: int
    """First outlying step of the episode, or the first excursion of the gradient norm right before it."""
    onset_position: int | None
    last_step: int
    last_position: int | None
    severity: float
    """Robust standard deviations of `value` above the baseline; inf for NaN."""
    ratio: float | None
    """`value` over the baseline; None for NaN."""
    baseline: float | None
    value: float | None
    grad_norm_ratio: float | None
    """Gradient norm over its usual size."""
    why: str


@dataclass(frozen=True, slots=True)
class NormWarning:
    """The gradient norm leaves its usual range while the loss is still normal: early, and no reason to roll back."""

    onset_step: int
    last_step: int
    grad_norm_ratio: float
    why: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What was thought of one of the newest steps."""

    step: int
    position: int | None
    level: Level
    has_excursion: bool


@dataclass(frozen=True, slots=True)
class SpikeState:
    """All that the detector remembers of a run's losses; begin with `SpikeState()`."""

    accepted: tuple[tuple[int, float], ...] = ()
    """Steps and their accepted losses, oldest first."""
    norms: tuple[tuple[int, float], ...] = ()
    """Steps and their accepted gradient norms, oldest first."""
    marks: tuple[Mark, ...] = ()
    """Newest steps, oldest first."""
    onset: Mark | None = None
    """First step of the episode that is going on."""
    episode_steps: int = 0
    newest: int | None = None


def observe_loss(state: SpikeState, sample: LossSample) -> tuple[SpikeState, SpikeVerdict | NormWarning | None]:
    """The state after a step's loss, and what is to be said about it.

    A step seen before is ignored (several ranks print the same), unless its loss is not finite.
    """
    if state.newest is not None and sample.step <= state.newest - REWIND_STEPS:
        state = rewound(state, sample.step - 1)
    is_seen = state.newest is not None and sample.step <= state.newest
    if is_seen and not _is_lost(sample):
        return state, None
    usual = baseline.fitted([loss for _, loss in state.accepted[-baseline.WINDOW :]])
    norms = [norm for _, norm in state.norms[-baseline.WINDOW :]]
    ratio = baseline.norm_ratio(norms, sample.grad_norm)
    mark = Mark(sample.step, sample.position, _level(usual, sample), _has_excursion(norms, ratio))
    state = _followed(state, mark)
    verdict = _judged(state, mark, sample, usual, ratio)
    return _accepted(state, mark, sample), verdict


def healthy(state: SpikeState) -> bool | None:
    """Whether the newest losses are clean; None while there are too few to tell.

    A lone outlier is forgiven with the next normal loss, two among the newest eight are not.
    """
    outlying = [mark.level for mark in state.marks[-STRONG_WITHIN:] if mark.level is not Level.NORMAL]
    if Level.NOT_FINITE in outlying or len(outlying) >= 2:
        return False
    if len(state.accepted) < baseline.LEVEL_WINDOW:
        return None
    return state.marks[-1].level is Level.NORMAL if state.marks else True


def warm(state: SpikeState, losses: Iterable[LossSample]) -> SpikeState:
    """`state` after known losses, oldest first: how a restarted supervisor gets its baseline back."""
    for sample in losses:
        state, _ = observe_loss(state, sample)
    return state


def rewound(state: SpikeState, to_step: int) -> SpikeState:
    """`state` as of `to_step`, the newest step that a rollback kept: what came after it never happened."""
    return SpikeState(
        accepted=tuple(each for each in state.accepted if each[0] <= to_step),
        norms=tuple(each for each in state.norms if each[0] <= to_step),
        newest=None if state.newest is None else min(state.newest, to_step),
    )


def same_place(earlier: SpikeVerdict, again: SpikeVerdict, tolerance: int) -> bool:
    """Whether a spike came back, after a plain replay, within `tolerance` batches of its place: then it is the data's.

    Without batch positions the steps are compared, which is the same as long as nothing was skipped in between.
    """
    if earlier.onset_position is None or again.onset_position is None:
        return abs(earlier.onset_step - again.onset_step) <= tolerance
    return abs(earlier.onset_position - again.onset_position) <= tolerance


def _is_lost(sample: LossSample) -> bool:
    """A finite loss beside a gradient norm of inf is a loss scaler at work (fp16), which is normal."""
    if sample.loss is None:
        return sample.grad_norm is not None and math.isnan(sample.grad_norm)
    return not math.isfinite(sample.loss)


def _level(usual: baseline.Baseline | None, sample: LossSample) -> Level:
    if _is_lost(sample):
        return Level.NOT_FINITE
    if usual is None or sample.loss is None:
        return Level.NORMAL
    severity, rise = usual.severity(sample.loss), usual.rise(sample.loss)
    if severity >= EXTREME_SIGMAS and rise >= EXTREME_RISE:
        return Level.EXTREME
    if severity >= STRONG_SIGMAS and rise >= STRONG_RISE:
        return Level.STRONG
    return Level.WEAK if severity >= WEAK_SIGMAS and rise >= WEAK_RISE else Level.NORMAL


def _has_excursion(norms: list[float], ratio: float | None) -> bool:
    if ratio is None:
        return False
    return not ratio < NORM_RATIO and not math.log(ratio) < NORM_SIGMAS * baseline.norm_spread(norms)


def _followed(state: SpikeState, mark: Mark) -> SpikeState:
    """`state` with the step marked and its episode opened, continued or closed."""
    marks = (*state.marks, mark)[-RECENT:]
    newest = mark.step if state.newest is None else max(state.newest, mark.step)
    state = replace(state, marks=marks, newest=newest)
    if state.onset is not None:
        if all(each.level is Level.NORMAL for each in marks[-EPISODE_GAP:]):
            return replace(state, onset=None, episode_steps=0)
        if state.episode_steps >= EPISODE_STEPS and mark.level is not Level.NOT_FINITE:
            return replace(state, accepted=(), norms=(), marks=(), onset=None, episode_steps=0)
        return replace(state, episode_steps=state.episode_steps + 1)
    if mark.level is Level.NORMAL:
        return state
    precursor = next((each for each in marks[-EPISODE_GAP:] if each.has_excursion), mark)
    return replace(state, onset=precursor, episode_steps=1)


def _accepted(state: SpikeState, mark: Mark, sample: LossSample) -> SpikeState:
    if mark.level is not Level.NORMAL:
        return state
    norm = sample.grad_norm
    if sample.loss is not None:
        state = replace(state, accepted=(*state.accepted, (sample.step, sample.loss))[-HISTORY:])
    if norm is not None and 0.0 < norm < math.inf and not mark.has_excursion:
        state = replace(state, norms=(*state.norms, (sample.step, norm))[-HISTORY:])
    return state


def _judged(
    state: SpikeState, mark: Mark, sample: LossSample, usual: baseline.Baseline | None, ratio: float | None
) -> SpikeVerdict | NormWarning | None:
    near = state.marks[-STRONG_WITHIN:]
    excursions = [each for each in near if each.has_excursion]
    if mark.level is Level.NOT_FINITE:
        named = f"loss is {sample.loss}" if sample.loss is not None else "the gradient norm is nan and the loss missing"
        return _verdict(SpikeKind.NAN, state, sample, usual, ratio, f"{named} at step {sample.step}")
    if mark.level is not Level.NORMAL:
        rule = _persistence(state.marks, near, has_norm=bool(excursions))
        return _verdict(SpikeKind.SPIKE, state, sample, usual, ratio, rule) if rule else None
    if ratio is not None and mark.has_excursion and len(excursions) >= NORM_NEEDED and state.onset is None:
        why = f"gradient norm is {ratio:.1f} times its usual size while the loss is normal"
        return NormWarning(excursions[0].step, sample.step, ratio, why)
    return None


def _persistence(marks: tuple[Mark, ...], near: tuple[Mark, ...], *, has_norm: bool) -> str | None:
    """The rule that makes an outlier a spike, in words."""
    last = marks[-EXTREME_NEEDED:]
    if len(last) == EXTREME_NEEDED and all(each.level is Level.EXTREME for each in last):
        return f"extreme in {EXTREME_NEEDED} steps in a row"
    strong = sum(each.level >= Level.STRONG for each in near)
    if strong >= (STRONG_NEEDED_WITH_NORM if has_norm else STRONG_NEEDED):
        signs = " and the gradient norm left its range" if has_norm else ""
        return f"far above the baseline in {strong} of the last {len(near)} steps{signs}"
    weak = sum(each.level >= Level.WEAK for each in marks)
    return f"above the baseline in {weak} of the last {len(marks)} steps" if weak >= WEAK_NEEDED else None


def _verdict(
    kind: SpikeKind,
    state: SpikeState,
    sample: LossSample,
    usual: baseline.Baseline | None,
    ratio: float | None,
    why: str,
) -> SpikeVerdict:
    onset = state.onset
    assert onset is not None  # a step is marked before it is judged, and an outlier opens an episode
    value, severity, times = sample.loss, math.inf, None
    if usual is not None and value is not None and math.isfinite(value):
        severity = usual.severity(value)
        times = value / usual.level if usual.level else None
        why = f"loss {value:.4g} against the usual {usual.level:.4g} ({severity:.0f} sigma), {why}"
    return SpikeVerdict(
        kind=kind,
        onset_step=onset.step,
        onset_position=onset.position,
        last_step=sample.step,
        last_position=sample.position,
        severity=severity,
        ratio=times,
        baseline=usual.level if usual is not None else None,
        value=value,
        grad_norm_ratio=ratio,
        why=why,
    )
