# SPDX-License-Identifier: Apache-2.0
"""What an attempt gets from its agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.agent.api import Report
from supervisor.agent.exits import ExitWatch


@dataclass(frozen=True, slots=True)
class Site:
    """What an attempt gets from the agent: where its record is, who watches exits, and where reports go."""

    record_path: Path
    watch: ExitWatch
    tell: Callable[[Report], None]
    tell_at_once: Callable[[Report], None]
