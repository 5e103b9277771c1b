# SPDX-License-Identifier: Apache-2.0
"""How checkpoints are shown, our own and foreign ones alike: as a row of a table, or as an object of JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from checkpoint.api import CatalogueEntry, CheckpointRef
from checkpoint.foreign import ForeignCheckpoint
from checkpoint.held import HeldImage

COLUMNS = ("step", "attempt", "time", "size", "health", "tier", "state", "whole", "folder")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """What this node holds of one snapshot: the parts of which ranks, and in how many bytes."""

    ref: CheckpointRef
    ranks: tuple[int, ...]
    replicas: tuple[int, ...]
    world_size: int
    bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether this node alone has every rank's part; other nodes may have the others."""
        return len({*self.ranks, *self.replicas}) == self.world_size


def snapshots_of(images: Iterable[HeldImage]) -> list[HeldSnapshot]:
    """The parts that a node holds, put together by save, in order of steps."""
    saves: dict[tuple[CheckpointRef, int, str], list[HeldImage]] = {}
    for image in images:
        saves.setdefault((image.ref, image.serial, image.launch), []).append(image)
    return [
        HeldSnapshot(
            ref,
            tuple(sorted(each.rank for each in parts if not each.is_replica)),
            tuple(sorted(each.rank for each in parts if each.is_replica)),
            parts[0].world_size,
            sum(each.file.bytes for each in parts),
        )
        for (ref, _, _), parts in sorted(saves.items(), key=lambda save: save[0])
    ]


def held_as_json(held: HeldSnapshot) -> dict[str, object]:
    return {
        "step": held.ref.step,
        "attempt": held.ref.attempt,
        "folder": None,
        "format": None,
        "tier": _MEMORY,
        "state": "held",
        "whole": held.is_whole,
        "bytes": held.bytes,
        "at": None,
        "position": None,
        "skipped": [],
        "healthy": None,
        "world_size": held.world_size,
        "faults": [],
        "ranks": list(held.ranks),
        "replicas": list(held.replicas),
    }


def held_as_row(held: HeldSnapshot) -> tuple[str, ...]:
    parts = [f"ranks {_listed(held.ranks)}"] if held.ranks else []
    parts += [f"replicas of ranks {_listed(held.replicas)}"] if held.replicas else []
    return (
        str(held.ref.step),
        str(held.ref.attempt),
        "-",
        readable_size(held.bytes),
        "-",
        _MEMORY,
        "held",
        "yes" if held.is_whole else "no",
        f"{', '.join(parts)} of {held.world_size}",
    )


def _listed(ranks: tuple[int, ...]) -> str:
    """Ranks as a person writes them: `0-7` or `0, 2`."""
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


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
