# SPDX-License-Identifier: Apache-2.0
"""Reads back what the agents kept of a run that hung: process states, flight recorders and stacks, by rank.

The names of the files are those that the agents write (`<kind>-rank-<R>.<ending>`); a rank without files is left out,
and that is evidence too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.diagnosis.flight_recorder import GroupRecord, Record, parse_record

_LARGEST_FILE_BYTES = 32 * 2**20
_STATE = re.compile(r"^State:\s+(\w)", re.MULTILINE)
_CHANNEL = re.compile(r"^\d+ .+ \w (\S+)$", re.MULTILINE)
_THREADS = "== threads"
_SECTION = re.compile(r"^(?=(?:Current thread|Thread) )", re.MULTILINE)
_MAIN = re.compile(r'^(?:Current thread|Thread) .*"?MainThread"?')


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """What was kept of one rank; empty or None where nothing was."""

    state: str = ""
    """Linux process state of the main thread (R, S, D, T, t), `gone` for a process that had ended."""
    sleeps_in: str = ""
    """Kernel function in which the main thread sleeps."""
    record: Record | None = None
    """None where the recorder gave nothing; empty where it had recorded nothing."""
    stack: str = ""
    """Of the main thread; other threads wait for things of their own."""

    @property
    def is_stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def is_gone(self) -> bool:
        return self.state == "gone"

    @property
    def is_uninterruptible(self) -> bool:
        return self.state == "D"


def read_evidence(folder: Path) -> dict[int, RankEvidence]:
    """All that lies in an incident's folder, by rank; files that cannot be read or understood are left out."""
    states = {rank: process_state(text.decode(errors="replace")) for rank, text in _files(folder, "process", "txt")}
    stacks = {
        rank: main_thread(text.decode(errors="replace"))
        for kind in ("python-stacks", "stacks")  # py-spy's come last: they name the threads
        for rank, text in _files(folder, kind, "txt")
    }
    records: dict[int, dict[str, GroupRecord]] = {}
    for ending in ("json", "pickle"):
        for rank, content in _files(folder, "flight-recorder", ending):
            record = parse_record(content)
            if record is not None:
                records.setdefault(rank, {}).update(record)
    return {
        rank: RankEvidence(*states.get(rank, ("", "")), records.get(rank), stacks.get(rank, ""))
        for rank in sorted({*states, *stacks, *records})
    }


def process_state(text: str) -> tuple[str, str]:
    """State and kernel function of a process from what the agent kept of /proc."""
    found = _STATE.search(text)
    if found is None or found[1] in "ZXx":
        return "gone", ""
    channel = _CHANNEL.search(text, text.find(_THREADS))
    return found[1], channel[1] if channel is not None and channel[1] not in ("-", "0") else ""


def main_thread(text: str) -> str:
    """The main thread's part of a dump by py-spy, which names it, or by faulthandler, which puts it last."""
    sections = _SECTION.split(text)
    return next((each for each in sections if _MAIN.match(each)), sections[-1])


def _files(folder: Path, kind: str, ending: str) -> Iterator[tuple[int, bytes]]:
    for path in sorted(folder.glob(f"{kind}-rank-*.{ending}")):
        rank = path.stem.rpartition("-")[2]
        try:
            if rank.isdecimal() and path.stat().st_size <= _LARGEST_FILE_BYTES:
                yield int(rank), path.read_bytes()
        except OSError:
            continue
