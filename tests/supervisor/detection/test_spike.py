# SPDX-License-Identifier: Apache-2.0
"""The loss detector on planted traces; the normal loss has 2 % of noise around its trend."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest

from supervisor.detection.api import (
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

SHIFT = 7
"""Batch index minus step in these traces."""


def normal(first: int, last: int, level: float = 2.0, norm: float | None = 1.0) -> list[LossSample]:
    """Steps `first` to `last` (exclusive) of a healthy loss."""
    source = random.Random(first)
    return [
        LossSample(step, level * (1 + 0.02 * source.gauss(0, 1)), step + SHIFT, norm) for step in range(first, last)
    ]


def seen(state: SpikeState, losses: Iterable[LossSample]) -> tuple[SpikeState, list[SpikeVerdict | NormWarning]]:
    said = []
    for sample in losses:
        state, verdict = observe_loss(state, sample)
        said += [verdict] if verdict else []
    return state, said


def spikes(said: list[SpikeVerdict | NormWarning]) -> list[SpikeVerdict]:
    return [each for each in said if isinstance(each, SpikeVerdict)]


@pytest.mark.parametrize(("jump", "within"), [(1.3, 30), (1.5, 8), (2.0, 8), (3.0, 2), (6.0, 2)], ids=str)
def test_lasting_jump_is_found_in_time_with_its_onset(jump: float, within: int) -> None:
    _, said = seen(SpikeState(), normal(0, 300) + normal(300, 300 + within, 2.0 * jump))
    found = spikes(said)[0]
    assert (found.kind, found.onset_step, found.onset_position) == (SpikeKind.SPIKE, 300, 307)
    assert found.baseline == pytest.approx(2.0, rel=0.03) and found.ratio == pytest.approx(jump, rel=0.1)
    assert found.last_position == found.last_step + SHIFT


@pytest.mark.parametrize("length", [1, 2, 3])
def test_spike_that_heals_within_a_few_steps_is_no_verdict(length: int) -> None:
    trace = normal(0, 300) + normal(300, 300 + length, 4.4) + normal(300 + length, 400)
    assert not seen(SpikeState(), trace)[1]


def test_spike_is_told_again_for_as_long_as_it_lasts_and_its_losses_stay_out_of_the_baseline() -> None:
    _, said = seen(SpikeState(), normal(0, 300) + normal(300, 400, 4.0))
    found = spikes(said)
    assert len(found) == 96 and {each.onset_step for each in found} == {300}
    assert len({each.baseline for each in found}) == 1


def test_gaps_within_an_episode_do_not_move_its_onset() -> None:
    dip = normal(303, 306) + normal(306, 320, 4.0)
    _, said = seen(SpikeState(), normal(0, 300) + normal(300, 303, 4.0) + dip)
    assert {each.onset_step for each in spikes(said)} == {300}


def test_nan_in_an_endless_episode_is_still_told() -> None:
    state, _ = seen(SpikeState(), normal(0, 300) + normal(300, 555, 4.0))
    lost = [LossSample(step, math.nan) for step in range(555, 560)]
    assert len(spikes(seen(state, lost)[1])) == 5


def test_excursions_of_the_gradient_norm_stay_out_of_its_baseline() -> None:
    _, said = seen(SpikeState(), normal(0, 100) + normal(100, 400, norm=10.0))
    assert len(said) == 299 and said[-1].grad_norm_ratio == pytest.approx(10.0)


def test_two_episodes_have_two_onsets() -> None:
    trace = normal(0, 300) + normal(300, 310, 4.0) + normal(310, 400) + normal(400, 410, 4.0)
    assert {each.onset_step for each in spikes(seen(SpikeState(), trace)[1])} == {300, 400}


def test_raised_loss_that_nobody_rolls_back_becomes_the_new_level() -> None:
    state, _ = seen(SpikeState(), normal(0, 300) + normal(300, 700, 4.0))
    assert healthy(state) is True
    assert not seen(state, normal(700, 800, 4.0))[1]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("steps_before", [0, 5, 300])
def test_loss_that_is_not_finite_is_told_at_once(loss: float, steps_before: int) -> None:
    lost = LossSample(steps_before, loss, steps_before + SHIFT)
    state, said = seen(SpikeState(), [*normal(0, steps_before), lost])
    assert [(each.kind, each.onset_step) for each in spikes(said)] == [(SpikeKind.NAN, steps_before)]
    assert healthy(state) is False


def test_gradient_norm_of_nan_stands_for_a_missing_loss_and_not_for_a_finite_one() -> None:
    state, _ = seen(SpikeState(), normal(0, 100))
    assert observe_loss(state, LossSample(100, None, None, math.nan))[1] is not None
    assert not spikes(seen(state, [LossSample(100, 2.0, None, math.inf)])[1]), "a loss scaler skips such a step"


def test_nan_after_a_rise_has_the_onset_of_the_rise() -> None:
    _, said = seen(SpikeState(), [*normal(0, 300), *normal(300, 303, 4.0), LossSample(303, math.nan)])
    assert [(each.kind, each.onset_step) for each in spikes(said)] == [(SpikeKind.NAN, 300)]


def test_gradient_norm_alone_warns_early_and_never_condemns() -> None:
    _, said = seen(SpikeState(), normal(0, 300) + normal(300, 340, norm=10.0))
    assert said and all(isinstance(each, NormWarning) for each in said)
    assert said[0].onset_step == 300 and said[0].last_step == 301
    assert said[0].grad_norm_ratio == pytest.approx(10.0)


def test_gradient_norm_before_the_loss_moves_the_onset_back_and_speeds_the_verdict_up() -> None:
    trace = normal(0, 300) + normal(300, 303, norm=10.0) + normal(303, 307, 4.0, norm=10.0)
    found = spikes(seen(SpikeState(), trace)[1])
    assert [(each.onset_step, each.last_step) for each in found] == [(300, 306)]
    assert "gradient norm" in found[0].why


def test_fast_fall_of_early_training_and_a_slow_rise_are_normal() -> None:
    falling = [each for step in range(400) for each in normal(step, step + 1, 2.0 + 9.0 * math.exp(-step / 60))]
    rising = [each for step in range(400, 3000) for each in normal(step, step + 1, 2.0 + (step - 400) / 2600)]
    assert not seen(SpikeState(), falling + rising)[1]


def test_doubling_amid_the_early_fall_is_found() -> None:
    levels = [2.0 + 9.0 * math.exp(-step / 150) for step in range(100)]
    falling = [each for step, level in enumerate(levels) for each in normal(step, step + 1, level)]
    assert spikes(seen(SpikeState(), falling + normal(100, 108, 2.0 * levels[-1]))[1])


def test_health_is_unknown_at_first_then_true_and_false_within_a_spike() -> None:
    state, _ = seen(SpikeState(), normal(0, 20))
    assert healthy(state) is None
    state, _ = seen(state, normal(20, 100))
    assert healthy(state) is True
    state, _ = seen(state, normal(100, 101, 4.0))
    assert healthy(state) is False
    healed, _ = seen(state, normal(101, 102))
    assert healthy(healed) is True
    spiking, _ = seen(state, normal(101, 103, 4.0))
    assert healthy(spiking) is False


def test_warm_gives_the_state_that_the_losses_gave() -> None:
    losses = normal(0, 200) + normal(200, 205, 4.0)
    assert warm(SpikeState(), losses) == seen(SpikeState(), losses)[0]


def test_rollback_forgets_what_came_after_and_finds_the_same_spike_again() -> None:
    poisoned = normal(300, 310, 4.0)
    state, said = seen(SpikeState(), normal(0, 300) + poisoned)
    state = rewound(state, 150)
    assert state.newest == 150 and state.accepted[-1][0] == 150 and healthy(state) is True
    _, again = seen(state, normal(151, 300) + poisoned)
    first, second = spikes(said)[0], spikes(again)[0]
    assert same_place(first, second, tolerance=0)


def test_restart_from_far_back_that_nobody_announced_counts_as_a_rollback() -> None:
    state, _ = seen(SpikeState(), normal(0, 300))
    state, _ = observe_loss(state, LossSample(100, 2.0))
    assert state.newest == 100


def test_step_that_several_ranks_print_counts_once() -> None:
    state, _ = seen(SpikeState(), normal(0, 300))
    assert not seen(state, [LossSample(300, 4.0)] * 8)[1]


@pytest.mark.parametrize(
    ("moved", "tolerance", "same"), [(0, 0, True), (5, 5, True), (6, 5, False), (-5, 5, True), (300, 50, False)]
)
def test_place_of_two_spikes_is_compared_by_batches(moved: int, tolerance: int, same: bool) -> None:
    def at(position: int | None, step: int) -> SpikeVerdict:
        return SpikeVerdict(SpikeKind.SPIKE, step, position, step, position, 9.0, 2.0, 2.0, 4.0, None, "")

    assert same_place(at(1000, 10), at(1000 + moved, 900), tolerance) is same
    assert same_place(at(None, 10), at(None, 10 + moved), tolerance) is same


@pytest.mark.parametrize("constant", [lambda _: 2.0, lambda _: 0.0, lambda _: -3.0], ids=["2", "0", "-3"])
def test_constant_loss_is_healthy(constant: Callable[[int], float]) -> None:
    state, said = seen(SpikeState(), [LossSample(step, constant(step)) for step in range(200)])
    assert not said and healthy(state) is True
