# SPDX-License-Identifier: Apache-2.0
"""What an incident's folder adds to its story: the lines that prove the diagnosis, and the evidence that was kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from supervisor.controller.inquest import DIAGNOSIS_FILE
from supervisor.controller.run_folder import read_json


def proofs(incident_folder: Path) -> tuple[str, ...]:
    """The lines that prove the diagnosis, as `file:line: text`, and the evidence files kept beside it."""
    kept = read_json(incident_folder / DIAGNOSIS_FILE)
    lines = [
        f"{line.get('file')}:{line.get('line_number')}: {str(line.get('text', '')).strip()}"
        for line in kept.get("evidence", ())
        if isinstance(line, dict)
    ]
    return (*lines, *_files(incident_folder))


def _files(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        names = sorted(each.name for each in folder.iterdir() if each.name != DIAGNOSIS_FILE)
        if names:
            yield f"{folder}: {', '.join(names)}"


def command_of(description: Mapping[str, Any]) -> tuple[str, ...]:
    """The run's command as run.json keeps it; empty when it is not known."""
    command = description.get("command")
    return tuple(str(word) for word in command) if isinstance(command, list) else ()
