# SPDX-License-Identifier: Apache-2.0
"""What an agent writes down about its attempt, so that the agent started after its death adopts it.

The record is on disk before the launcher is started and again before anything relies on what changed in it. So there
is no moment at which a launcher runs that a new agent could not find: by its ids, else by the rank folder in its
environment.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from supervisor.agent.api import AttemptEnded, LaunchSpec, RankExit
from supervisor.agent.processes import ProcessId
from supervisor.core import codec

_log = logging.getLogger(__name__)

_VERSION = 1


class RecordError(Exception):
    """The record cannot be read; without it nobody knows whether an attempt runs here."""


class DamagedRecordError(RecordError):
    """The record is there and makes no sense."""


@dataclass(frozen=True, slots=True)
class KnownRank:
    rank: int
    local_rank: int
    process: ProcessId


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt on this node; `wrapper` is the shell that keeps the launcher's exit code."""

    attempt: int
    spec: LaunchSpec
    rank_folder: str
    exit_file: str
    began_at: float
    version: int = _VERSION
    warm: bool = False
    attached: bool = False
    """Somebody else started it: it is watched, never signalled."""
    notes: tuple[str, ...] = ()
    wrapper: ProcessId | None = None
    launcher: ProcessId | None = None
    ranks: tuple[KnownRank, ...] = ()
    exits: tuple[RankExit, ...] = ()
    ordered_to_end: bool = False
    refused: str = ""
    ended: AttemptEnded | None = None
    end_acknowledged: bool = False

    @property
    def is_over(self) -> bool:
        return self.ended is not None or bool(self.refused)


def never_begun(attempt: int, at: float) -> AttemptRecord:
    """For an attempt that was ordered to end before its order to start had arrived."""
    ended = AttemptEnded(attempt, at, None, (), by_us=True)
    spec = LaunchSpec((), "", (), "")
    return AttemptRecord(attempt, spec, "", "", at, ordered_to_end=True, ended=ended)


def write(path: Path, record: AttemptRecord) -> None:
    """Raises OSError; the old record stays whole then.

    It is not synced to the disk: it has to survive the agent, while after a crash of the whole node nothing runs that
    it could name. A sync for each rank that ends would make every stop wait for the disk.
    """
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(json.dumps(codec.encode(record)))
    partial.replace(path)


def write_if_possible(path: Path, record: AttemptRecord) -> None:
    """For what must not wait: a full disk is logged, and an agent started anew would not know what has changed."""
    try:
        write(path, record)
    except OSError as error:
        _log.error("cannot write %s: %s; make room, or an agent started anew will not know this", path, error)


def read(path: Path) -> AttemptRecord | None:
    """The record, None where there was no attempt yet or a crash of the node left it empty.

    Raises RecordError, and DamagedRecordError for what no agent has written so.
    """
    try:
        content = path.read_text()
        if not content:
            return None
        record = codec.decode(AttemptRecord, json.loads(content))
    except FileNotFoundError:
        return None
    except (ValueError, IsADirectoryError) as error:
        raise DamagedRecordError(f"{path} is damaged ({error})") from error
    except OSError as error:
        raise RecordError(
            f"cannot read {path} ({error}); make it readable, or end what still runs of this run on this node and "
            "remove the file"
        ) from error
    if record.version != _VERSION:
        raise RecordError(f"{path} is of version {record.version}, this agent knows {_VERSION}; use the same version")
    return record
