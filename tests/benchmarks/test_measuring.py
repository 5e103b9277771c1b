# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: bars, tables and result files, and how numbers of the launches become bars."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import detection, measuring, recovery
from benchmarks.measuring import Bar
from supervisor.core.incidents import Incident
from supervisor.core.values import FailureKind


def test_bar_is_met_at_its_limit_and_never_by_what_is_no_number() -> None:
    assert Bar("a", 1.5, 1.5, "s").is_met
    assert not Bar("a", 1.51, 1.5, "s").is_met
    assert not Bar("a", math.nan, 1.5, "s").is_met


def test_missed_bar_is_printed_and_written_and_makes_the_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results" / "slow.json"
    code = measuring.conclude(measuring.place(), output, {"trials": 1}, {"x": 3}, [Bar("x", 3, 2, "s")])
    assert code == 1
    assert "x: 3 s, bar 2 s: MISSED" in capsys.readouterr().out
    written = json.loads(output.read_text())
    assert written["bars"] == [{"name": "x", "value": 3, "limit": 2, "unit": "s", "is_met": False}]
    assert {"machine", "commit", "load_average", "took_s", "parameters", "x"} <= written.keys()


def test_met_bars_make_the_exit_code_0(tmp_path: Path) -> None:
    assert measuring.conclude(measuring.place(), tmp_path / "a.json", {}, {}, [Bar("x", 1, 2, "s")]) == 0


def test_what_was_not_measured_is_null_in_the_result(tmp_path: Path) -> None:
    output = tmp_path / "a.json"
    measuring.conclude(measuring.place(), output, {}, {"seconds": [measuring.spread([])]}, [])
    assert json.loads(output.read_text())["seconds"] == [{"median": None, "least": None, "most": None, "trials": 0}]


def test_table_is_plain_text_when_it_is_not_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    measuring.show(("what", "s"), [("short", 1.0), ("a longer name", 12.25)])
    assert capsys.readouterr().out.splitlines() == [
        "what                s",
        "short           1.000",
        "a longer name  12.250",
    ]


def found(seconds: list[float], tries: int) -> recovery.Found:
    return recovery.Found(tries=tries, recovery_s=seconds, until_ring_s=seconds)


def test_recovery_is_held_against_the_median_of_torchrun_alone() -> None:
    plain, launcher, *_ = recovery.VARIANTS
    numbers = {plain.name: found([2.0, 4.0, 3.0], 3), launcher.name: found([4.0, 5.0], 3)}
    held = {bar.name: (bar.value, bar.is_met) for bar in recovery.bars(numbers, (plain, launcher))}
    assert held == {
        "torchrun in place: tries without recovery": (0, True),
        "supervised, warm launcher: tries without recovery": (1, False),
        "supervised, warm launcher: median recovery over torchrun's": (1.5, True),
    }


def test_parts_are_medians_in_the_order_of_their_happening() -> None:
    incidents = [
        Incident(n, FailureKind.EXIT, n, 1, "", 0.0, 0.1 * n, stopped_at=1.0, first_step_at=2.0) for n in (1, 2, 3)
    ]
    assert recovery.parts_of(incidents) == {"detect": 0.2, "stop": 0.8, "first step": 1.0}


def test_hang_may_take_three_steps_or_five_seconds() -> None:
    pace = detection.Found(step_s=2.0, exits_s=[0.6], stopped_s=[5.9], asleep_s=[6.1])
    assert [bar.is_met for bar in detection.bars({"2 s steps": pace})] == [False, True, False]
