# SPDX-License-Identifier: Apache-2.0
"""A scenario as an operator would tell it: a title, what happened, and what the core does about the last event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.core import decisions as d
from supervisor.core.values import Phase, WaitFor
from tests.supervisor.core.journeys import Journey


@dataclass(frozen=True)
class Scenario:
    title: str
    play: Callable[[], Journey]
    phase: Phase
    asked: tuple[d.Decision, ...] = ()
    """What is to be done; telling a person apart."""
    told: str = ""
    """Part of what a person is told."""
    waits_for: WaitFor | None = None


def title(scenario: Scenario) -> str:
    return scenario.title


def check(scenario: Scenario) -> None:
    journey = scenario.play()
    assert journey.asked() == scenario.asked
    assert (journey.state.phase, journey.state.waiting_for) == (scenario.phase, scenario.waits_for)
    assert scenario.told in journey.told()
