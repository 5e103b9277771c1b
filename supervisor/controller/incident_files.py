# SPDX-License-Identifier: Apache-2.0
"""What an incident's folder adds to its story: the lines that prove the diagnosis, and the evidence that was kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from supervisor.controller.run_folder import RunFolder, read_json, write_json
from supervisor.core.events import OrderGiven

DIAGNOSIS_FILE = "diagnosis.json"
CORRECTION_FILE = "correction.json"


def proofs(incident_folder: Path) -> tuple[str, ...]:
    """The lines that prove the diagnosis, as `file:line: text`, and the evidence files kept beside it."""
    kept = read_json(incident_folder / DIAGNOSIS_FILE)
    lines = [
        f"{line.get('file')}:{line.get('line_number')}: {str(line.get('text', '')).strip()}"
        for line in kept.get("evidence", ())
        if isinstance(line, dict)
    ]
    return (*lines, *_files(incident_folder))


def keep_correction(incident_folder: Path, order: OrderGiven) -> None:
    """Keep what a person says that the incident was beside what was diagnosed; raises OSError. The newest counts."""
    diagnosed = read_json(incident_folder / DIAGNOSIS_FILE)
    incident_folder.mkdir(parents=True, exist_ok=True)
    write_json(
        incident_folder / CORRECTION_FILE,
        {
            "incident": order.incident,
            "reason": order.reason,
            "who": order.who,
            "why": order.why,
            "at": order.at,
            "diagnosed_reason": diagnosed.get("reason"),
            "decided_by": diagnosed.get("decided_by"),
        },
    )


def corrections(folder: RunFolder, incidents: Iterable[int]) -> dict[int, str]:
    """By incident, the reason that a person gave."""
    kept = {number: read_json(folder.incident(number) / CORRECTION_FILE).get("reason") for number in incidents}
    return {number: str(reason) for number, reason in kept.items() if reason}


def _files(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        names = sorted(each.name for each in folder.iterdir() if each.name not in (DIAGNOSIS_FILE, CORRECTION_FILE))
        if names:
            yield f"{folder}: {', '.join(names)}"


def command_of(description: Mapping[str, Any]) -> tuple[str, ...]:
    """The run's command as run.json keeps it; empty when it is not known."""
    command = description.get("command")
    return tuple(str(word) for word in command) if isinstance(command, list) else ()
