# SPDX-License-Identifier: Apache-2.0
"""Picks up the event lines that the checkpoint library appends, `checkpoint.rank-<R>.jsonl` in the rank folder.

A line that is still being written has no end yet and is taken by a later look; one that is not JSON is passed over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from supervisor.agent.logs import Tail

PREFIX = "checkpoint"


class FactReader:
    """Reads each line once; a restarted agent reads them all again, which changes nothing at the controller."""

    def __init__(self, rank_folder: Path) -> None:
        self._folder = rank_folder
        self._tails: dict[Path, Tail] = {}

    def read(self) -> list[dict[str, Any]]:
        facts: list[dict[str, Any]] = []
        for path in sorted(self._folder.glob(f"{PREFIX}.rank-*.jsonl")):
            tail = self._tails.setdefault(path, Tail(path))
            facts += [fact for line in tail.lines() if (fact := parse(line)) is not None]
        return facts


def parse(line: str) -> dict[str, Any] | None:
    """The object on the line, None when there is none."""
    try:
        fact = json.loads(line)
    except ValueError:
        return None
    return fact if isinstance(fact, dict) else None


def is_commit(fact: dict[str, Any]) -> bool:
    """Whether it tells of a committed checkpoint, which the controller should hear of at once."""
    return "committed" in (fact.get("event"), fact.get("kind"))
