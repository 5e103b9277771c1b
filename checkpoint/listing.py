# SPDX-License-Identifier: Apache-2.0
"""How checkpoints are shown, our own and foreign ones alike: as a row of a table, or as an object of JSON."""

from __future__ import annotations

from datetime import datetime

from checkpoint.api import CatalogueEntry
from checkpoint.foreign import ForeignCheckpoint

COLUMNS = ("step", "attempt", "time", "size", "health", "tier", "state", "whole", "folder")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def own_as_json(entry: CatalogueEntry, tier: str) -> dict[str, object]:
    known = entry.committed
    return {
        "step": entry.ref.step if entry.ref else None,
        "attempt": entry.ref.attempt if entry.ref else None,
        "folder": entry.folder,
        "format": None,
        "tier": tier,
        "state": entry.state.value,
        "whole": entry.is_whole,
        "bytes": entry.bytes,
        "at": known.at if known else None,
        "position": known.position if known else None,
        "skipped": [list(each) for each in known.skipped] if known else [],
        "healthy": known.healthy if known else None,
        "world_size": known.world_size if known else None,
        "faults": [],
    }


def foreign_as_json(found: ForeignCheckpoint, tier: str) -> dict[str, object]:
    return {
        "step": found.step,
        "attempt": None,
        "folder": found.folder or found.uri,
        "format": found.format.value,
        "tier": tier,
        "state": "foreign",
        "whole": found.is_whole,
        "bytes": found.bytes,
        "at": None,
        "position": None,
        "skipped": [],
        "healthy": None,
        "world_size": None,
        "faults": [{"file": each.name, "why": each.why} for each in found.faults],
    }


def own_as_row(entry: CatalogueEntry, tier: str) -> tuple[str, ...]:
    known = entry.committed
    health = {True: "healthy", False: "unhealthy", None: "-"}[known.healthy if known else None]
    when = datetime.fromtimestamp(known.at).astimezone().isoformat(" ", "seconds") if known else "-"
    return (
        str(entry.ref.step) if entry.ref else "-",
        str(entry.ref.attempt) if entry.ref else "-",
        when,
        readable_size(entry.bytes),
        health,
        tier,
        entry.state.value,
        "yes" if entry.is_whole else "no",
        entry.folder,
    )


def foreign_as_row(found: ForeignCheckpoint, tier: str) -> tuple[str, ...]:
    return (
        "-" if found.step is None else str(found.step),
        "-",
        "-",
        readable_size(found.bytes),
        "-",
        tier,
        found.format.value,
        "yes" if found.is_whole else "no",
        found.folder or found.uri,
    )


def readable_size(size: float) -> str:
    """A number of bytes with a binary unit, as `1.5 GiB`."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
