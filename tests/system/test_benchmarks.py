# SPDX-License-Identifier: Apache-2.0
"""A slice of the benchmarks that break real launches: they run to their end and their numbers are of the right kind.

No bar is held here, because the machine may be busy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import control_plane, detection, recovery
from benchmarks.detection import Breaker

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_torchrun_alone_and_the_supervised_launch_recover_from_a_kill(tmp_path: Path) -> None:
    variants = [replace(v, share=1.0) for v in recovery.VARIANTS if v.warm in (None, "ranks")]
    found = recovery.measured(1, variants, tmp_path)
    assert [each.failures for each in found.values()] == [[], []]
    assert [len(each.recovery_s) for each in found.values()] == [1, 1]
    supervised = found[variants[1].name]
    (incident,) = supervised.incidents
    assert incident.recovery_s == pytest.approx(supervised.recovery_s[0], abs=0.5)
    assert {"detect", "stop", "diagnose", "start", "import", "restore", "first step"} <= incident.parts().keys()


def test_killed_stopped_and_sleeping_ranks_are_noticed(tmp_path: Path) -> None:
    pace = replace(detection.PACES[0], calm_steps=50)
    found = detection.broken(Breaker(pace, tmp_path), trials=1)
    assert found.step_s >= pace.step_s
    assert min(found.exits_s) > 0 and min(*found.stopped_s, *found.asleep_s) > 3.0


def test_cost_of_controller_agent_and_standby_is_told(tmp_path: Path) -> None:
    costs = control_plane.measured(tmp_path, step_s=0.2, watch_s=3.0, quiet_s=0.0)
    assert costs.keys() == {"controller", "agent", "standby"}
    assert all(cost.pss_mb > 1 and cost.rss_mb >= cost.pss_mb for cost in costs.values())
