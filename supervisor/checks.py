# SPDX-License-Identifier: Apache-2.0
"""`supervisor check`: everything that can be tried before a run is started, good findings too."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor import __version__, preflight
from supervisor.config import Settings
from supervisor.preflight import Finding, Level

_OLDEST_PYTHON = (3, 10)
_WORTH_NAMING = ("torch", "pydantic", "rich", "xxhash", "cryptography", "py-spy", "matplotlib")

__all__ = ["Finding", "Level", "findings"]


def findings(
    settings: Settings, command: Sequence[str], working_folder: Path, environment: Mapping[str, str]
) -> list[Finding]:
    """Settings and versions, what `preflight` finds, and whether the scheduler answers."""
    found = [Finding(Level.GOOD, f"configuration: run {settings.run.name!r}, mode {settings.policy.mode.value}")]
    found += versions()
    if command:
        found += preflight.findings(settings, command, working_folder, environment)
        if not any(each.level is Level.ERROR for each in found):
            found.append(Finding(Level.GOOD, f"command: {' '.join(command)}"))
    else:
        found += preflight.folder_findings(settings, working_folder)
        found.append(Finding(Level.WARNING, "no command given behind --, so program and imports were not looked at"))
    found.append(scheduler(settings))
    return found


def versions() -> list[Finding]:
    """Of this program, Python and the packages that matter."""
    found = [f"pretraining-supervisor {__version__}", f"Python {platform.python_version()} ({sys.executable})"]
    for name in _WORTH_NAMING:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    level = Level.GOOD if sys.version_info >= _OLDEST_PYTHON else Level.ERROR
    return [Finding(level, f"versions: {', '.join(found)}")]


def scheduler(settings: Settings) -> Finding:
    """Whether the scheduler is known and answers."""
    from schedulers.api import SchedulerError
    from schedulers.registry import open_scheduler

    name = settings.run.scheduler
    try:
        held = open_scheduler(name, settings.run.folder).cordoned()
    except SchedulerError as error:
        return Finding(Level.ERROR, f"scheduler {name}: {error}")
    return Finding(Level.GOOD, f"scheduler {name}: answers, {len(held)} nodes held out of scheduling")
