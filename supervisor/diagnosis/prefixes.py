# SPDX-License-Identifier: Apache-2.0
"""Takes stacked launcher prefixes and time stamps off a log line and keeps what they say.

The rank that counts is the launcher's (`[rank9]:`, `srun -l`), never the `[Rank 1]` inside a message: the latter is
the rank within a process group. Time stamps of most formats lack the year and the zone, so a time here is seconds
since 1 January as the line writes it; it orders lines against lines and is never compared with epoch seconds.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

MAX_LINE_CHARS = 4096
"""Longer lines are cut: a message stands at the front, and one line must not cost a second."""

_MAX_PREFIXES = 8
_MONTHS = {
    name: i
    for i, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], start=1
    )
}
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CLOCK = r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"

_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank(?P<rank>\d+)\]:\s?",
        r"\[default(?P<local_rank>\d+)\]:\s?",
        r"\((?:\w+ )?pid=\d+(?:, ip=(?P<node>[\w.:-]+))?\)\s?",
        r"(?P<node>\d{1,3}(?:\.\d{1,3}){3}): ",
        r"\s{0,6}(?P<task>\d{1,6}): ",
        r"(?P<node>(?:node|host|gpu|worker|compute|nid|ip|cn|dgx|h100|a100)[a-z0-9.-]*\d[a-z0-9.-]*): ",
        r"\[?(?P<y>\d{4})-(?P<mo>\d\d)-(?P<d>\d\d)[T_ ]" + _CLOCK + r"(?:Z|[+-]\d\d:?\d\d)?\]?[\s,:|-]*",
        r"\[?[A-Z](?P<mo>\d\d?)(?P<d>\d\d) " + _CLOCK + r"\s+(?:\d+\s+)?[^\s\]]+:\d+\]\s?",
        r"(?P<mon>[A-Z][a-z]{2})\s+(?P<d>\d{1,2}) " + _CLOCK + r" (?P<node>[\w.-]+) (?:kernel:|\S{1,40}\[\d+\]:) ?",
        r"\[[A-Z][a-z]{2} (?P<mon>[A-Z][a-z]{2})\s+(?P<d>\d{1,2}) " + _CLOCK + r" \d{4}\] ?",
        r"(?:<\d+>)?\[\s*\d+\.\d{3,6}\] ",
        r"kernel: ",
        r"(?P<node>[A-Za-z0-9][\w.-]*):\d+:\d+ \[\d+\] ",
        r"\[(?P<node>[\w.-]+):\d+\s?:\d+:\d+\] ",
        r"\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\]?(?:[: ]\s*|$)",
    )
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its prefixes: `at` is seconds since 1 January, or None when the line carries no time."""

    text: str
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    at: float | None = None


def strip(raw: str) -> Line:
    """Peel prefixes from `raw` until none fits; text that merely looks like one costs nothing but that word."""
    text = raw[:MAX_LINE_CHARS].rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    rank: int | None = None
    task: int | None = None
    local_rank: int | None = None
    node: str | None = None
    at: float | None = None
    position = 0
    for _ in range(_MAX_PREFIXES):
        found = _match_prefix(text, position)
        if found is None:
            break
        position = found.end()
        parts = found.groupdict()
        rank = int(parts["rank"]) if rank is None and parts.get("rank") else rank
        task = int(parts["task"]) if task is None and parts.get("task") else task
        local_rank = int(parts["local_rank"]) if local_rank is None and parts.get("local_rank") else local_rank
        node = parts.get("node") or node
        at = _seconds(parts) if at is None else at
    return Line(text[position:], rank if rank is not None else task, local_rank, node, at)


def _match_prefix(text: str, position: int) -> re.Match[str] | None:
    for pattern in _PREFIXES:
        found = pattern.match(text, position)
        if found is not None and found.end() > position:
            return found
    return None


def _seconds(parts: dict[str, str | None]) -> float | None:
    hour, minute, second, day = parts.get("h"), parts.get("mi"), parts.get("s"), parts.get("d")
    if hour is None or minute is None or second is None or day is None:
        return None
    month = _MONTHS.get(parts["mon"] or "") if parts.get("mon") else int(parts.get("mo") or 0)
    if not month or month > len(_DAYS_BEFORE):
        return None
    days = _DAYS_BEFORE[month - 1] + int(day) - 1
    return days * 86400.0 + int(hour) * 3600 + int(minute) * 60 + float(second.replace(",", "."))


def local_seconds_of_year(epoch: float) -> float:
    """Epoch seconds as a log of this machine would write them: seconds since 1 January, local time."""
    local = time.localtime(epoch)
    days = _DAYS_BEFORE[local.tm_mon - 1] + local.tm_mday - 1
    return days * 86400.0 + local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + epoch % 1
