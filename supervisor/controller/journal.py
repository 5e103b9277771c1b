# SPDX-License-Identifier: Apache-2.0
"""The journal: one JSON line for each event that changed something, durable before its decisions run.

It is the recovery (replay), the audit (`story`) and the source of ETTR and MTTR. A line that a crash tore in two was
never acted upon, so it is cut off when the journal is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from supervisor.controller.api import ControllerError, JournalRecord
from supervisor.controller.disk import FULL_ERRORS
from supervisor.core.api import CodecError, Policy, RunState, advance, decisions, decode, decode_union, encode, events

VERSION = 1


class JournalFullError(ControllerError):
    """A line could not be made durable; nothing of it stays behind, and it may be tried again."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"the journal {path} cannot be written: {error.strerror}")
        self.is_for_want_of_room = error.errno in FULL_ERRORS


class Journal:
    """Append-only; one writer, who holds the run's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        new = not path.exists()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = _whole_length(path)
        os.ftruncate(self._descriptor, self._size)
        if new:
            _sync_folder(path.parent)

    def append(self, record: JournalRecord) -> None:
        """Raises JournalFullError when the line is not on disk."""
        line = _line(record)
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._descriptor, line[written:], self._size + written)
            os.fsync(self._descriptor)
        except OSError as error:
            self._cut_off_torn_line()
            raise JournalFullError(self._path, error) from None
        self._size += len(line)

    def _cut_off_torn_line(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            raise JournalFullError(self._path, error) from None

    def close(self) -> None:
        os.close(self._descriptor)


def read_journal(path: Path) -> Iterator[JournalRecord]:
    """The records, oldest first, without a torn last line; raises ControllerError for any other damaged line."""
    if not path.exists():
        return
    try:
        remaining = _whole_length(path)
        opened = path.open("rb")
    except OSError as error:
        raise ControllerError(
            f"the journal {path} cannot be read: {error.strerror}; it has to be a file that this user may read"
        ) from error
    with opened as file:
        for number, line in enumerate(file, 1):
            remaining -= len(line)
            if remaining < 0:
                return
            try:
                yield _record(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ControllerError(
                    f"{path}:{number} is damaged ({error}); move the run folder away to start afresh"
                ) from None


def replay(records: Iterable[JournalRecord]) -> tuple[RunState | None, Policy]:
    """The state that the journal leads to, and the policy that was in force last."""
    state: RunState | None = None
    policy = Policy()
    for record in records:
        if record.policy is not None:
            policy = record.policy
        if record.event is not None:
            state, _ = advance(state, record.event, policy)
    return state, policy


_DECISIONS: dict[str, type[decisions.Decision]] = {
    cls.__name__: cls
    for cls in (
        decisions.Launch,
        decisions.Stop,
        decisions.KeepEvidence,
        decisions.Finish,
        decisions.Diagnose,
        decisions.Probe,
        decisions.Cordon,
        decisions.Notify,
        decisions.Release,
    )
}


def _line(record: JournalRecord) -> bytes:
    value: dict[str, Any] = {"v": VERSION, "at": record.at}
    if record.policy is not None:
        value["policy"] = encode(record.policy)
    if record.event is not None:
        value["event"] = encode(record.event)
        value["decisions"] = encode(record.decisions)
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _record(value: dict[str, Any]) -> JournalRecord:
    if value["v"] > VERSION:
        raise CodecError(f"written by a newer version ({value['v']})")
    policy = decode(Policy, value["policy"]) if "policy" in value else None
    event = decode_union(events.EVENTS, value["event"]) if "event" in value else None
    made = tuple(decode_union(_DECISIONS, raw) for raw in value.get("decisions", ()))
    return JournalRecord(float(value["at"]), event, made, policy)


def _whole_length(path: Path) -> int:
    """Bytes up to the last line end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
