# SPDX-License-Identifier: Apache-2.0
"""The schedulers by name.

A backend is imported only when it is opened, because it may need a package that is not installed everywhere.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import cast

from schedulers.api import Scheduler, SchedulerError

SCHEDULERS = {
    "local": "schedulers.local:LocalScheduler",
}


def open_scheduler(name: str, folder: Path) -> Scheduler:
    """The scheduler of that name, which keeps its own files below `folder`. Raises SchedulerError."""
    place = SCHEDULERS.get(name)
    if place is None:
        raise SchedulerError(f"there is no scheduler {name!r}; known are {', '.join(sorted(SCHEDULERS))}")
    module, _, factory = place.partition(":")
    try:
        return cast("Scheduler", getattr(importlib.import_module(module), factory)(folder))
    except ImportError as error:
        raise SchedulerError(f"scheduler {name!r} needs a package that is not installed: {error}") from error
