# SPDX-License-Identifier: Apache-2.0
"""A slice of the false-alarm benchmark: shorter runs, one seed."""

from __future__ import annotations

import pytest

from benchmarks import false_alarms


@pytest.mark.parametrize("name", false_alarms.NOISES)
def test_noisy_run_with_pauses_never_hangs(name: str) -> None:
    count, job, _ = false_alarms.false_hangs(false_alarms.NOISES[name], 0.25, seed=11, steps=1500)
    assert count == 0 and job.step == 1500


@pytest.mark.parametrize("kind", false_alarms.LOSS_KINDS)
def test_noisy_loss_never_spikes(kind: str) -> None:
    assert false_alarms.false_spikes(kind, seed=11, steps=1200)[0] == 0


@pytest.mark.parametrize("median_s", [0.05, 2.0])
def test_hang_is_noticed_within_three_medians_or_five_seconds(median_s: float) -> None:
    assert max(false_alarms.hang_delays(median_s, tries=5, steps=1100)) <= max(3 * median_s, 5.0)


@pytest.mark.parametrize(("jump", "within"), [(1.3, 30), (2.0, 8)])
def test_lasting_jump_of_the_loss_is_noticed_in_time(jump: float, within: int) -> None:
    assert false_alarms.spike_delay(jump, seed=11, steps=600) <= within


def test_claims_are_checked_against_the_numbers() -> None:
    table = {
        "false hangs": {"calm": 0.0},
        "false spikes": {"normal": 1.0},
        false_alarms.HANG_DELAY: {"0.05 s steps": 5.1, "2.0 s steps": 5.9},
        false_alarms.SPIKE_DELAY: {"loss x2.0": 5.0, "loss x1.3": 31.0},
    }
    missed = [bar.name for bar in false_alarms.bars(table) if not bar.is_met]
    assert missed == ["false spikes, normal", "hang noticed, 0.05 s steps", "spike noticed, loss x1.3"]
