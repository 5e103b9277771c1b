# SPDX-License-Identifier: Apache-2.0
"""What holds of the loss detector for any trace of losses."""

from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.detection.api import LossSample, SpikeKind, SpikeState, SpikeVerdict, observe_loss, rewound, warm

floats = st.none() | st.floats(allow_nan=True, allow_infinity=True, width=32)
samples = st.builds(LossSample, step=st.integers(0, 400), loss=floats, position=st.none(), grad_norm=floats)
traces = st.lists(samples, max_size=60)


def usual(seed: int, steps: int) -> list[LossSample]:
    source = random.Random(seed)
    return [LossSample(step, 2.0 + 0.05 * source.gauss(0, 1), step, 1.0 + source.random()) for step in range(steps)]


@settings(max_examples=60, deadline=None)
@given(traces, st.integers(0, 100))
def test_any_loss_that_is_not_finite_is_told_at_once_and_nothing_else_is_called_nan(
    trace: list[LossSample], known: int
) -> None:
    state = warm(SpikeState(), usual(1, known))
    for sample in trace:
        state, verdict = observe_loss(state, sample)
        is_lost = sample.loss is not None and not math.isfinite(sample.loss)
        norm_lost = sample.loss is None and sample.grad_norm is not None and math.isnan(sample.grad_norm)
        is_nan = isinstance(verdict, SpikeVerdict) and verdict.kind is SpikeKind.NAN
        assert is_nan == (is_lost or norm_lost)
        if isinstance(verdict, SpikeVerdict):
            assert verdict.last_step == sample.step


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.floats(0.3, 8.0), max_size=40),
    st.floats(1e-3, 1e3),
)
def test_scaling_the_losses_changes_no_verdict(seed: int, factors: list[float], scale: float) -> None:
    losses = usual(seed, 80)
    losses += [LossSample(80 + index, 2.0 * factor, None, factor) for index, factor in enumerate(factors)]
    plain, scaled = SpikeState(), SpikeState()
    for sample in losses:
        assert sample.loss is not None
        plain, first = observe_loss(plain, sample)
        larger = LossSample(sample.step, sample.loss * scale, sample.position, sample.grad_norm)
        scaled, second = observe_loss(scaled, larger)
        assert (first is None) == (second is None)
        if isinstance(first, SpikeVerdict) and isinstance(second, SpikeVerdict):
            assert (first.onset_step, first.kind) == (second.onset_step, second.kind)


@settings(max_examples=60, deadline=None)
@given(traces)
def test_replay_gives_equal_states(trace: list[LossSample]) -> None:
    assert warm(SpikeState(), trace) == warm(SpikeState(), trace)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 200), st.integers(0, 10**6))
def test_rewound_state_equals_one_that_never_went_further(to_step: int, seed: int) -> None:
    losses = usual(seed, 200)
    there = warm(SpikeState(), [each for each in losses if each.step <= to_step])
    back = rewound(warm(SpikeState(), losses), to_step)
    assert back.accepted == there.accepted and back.newest == there.newest


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_gradient_norm_alone_never_gives_a_verdict(seed: int, size: int) -> None:
    losses = [LossSample(each.step, each.loss, None, 10.0**size) for each in usual(seed, 200)[100:]]
    state = warm(SpikeState(), usual(seed, 100))
    for sample in losses:
        state, verdict = observe_loss(state, sample)
        assert not isinstance(verdict, SpikeVerdict)
