# SPDX-License-Identifier: Apache-2.0
"""The writer's work for one rank, whose slabs come and go meanwhile."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from checkpoint.api import CheckpointRef
from checkpoint.plan import RankPlan
from checkpoint.record import Notes, encode_outline, encode_record
from checkpoint.session import Session
from checkpoint.slab import Slab, Word, slab_bytes
from checkpoint.stores import PosixStore
from checkpoint.wire import Hello, Lines, Outcome, Report, Saved

_PATIENCE_S = 60.0


class PlanFails(PosixStore):
    """The first plan is long in being written, and then it cannot be."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_at_plan, self.may_fail = threading.Event(), threading.Event()
        self._has_failed = False

    def write(self, name: str, payload: bytes) -> None:
        if "plan" in name and not self._has_failed:
            self._has_failed = True
            self.is_at_plan.set()
            assert self.may_fail.wait(_PATIENCE_S)
            raise OSError("the store is away")
        super().write(name, payload)


def fill(slab: Slab, serial: int) -> Saved:
    """Put a save of this number into a slab."""
    plan = RankPlan("launch", serial, 1, 2)
    record = encode_record(CheckpointRef(serial, 1), Notes("", None, (), None), plan, encode_outline({}, {}, []))
    slab.word = Word.FILLING
    slab.put_record(1000, record)
    slab.word = Word.FULL
    return Saved(serial, serial, str(slab.path), 0.0)


def reports(connection: socket.socket, count: int) -> list[Report]:
    lines, heard = Lines(), list[Report]()
    while len(heard) < count:
        heard += [each for each in lines.feed(connection.recv(1 << 16)) if isinstance(each, Report)]
    return heard


def test_a_save_that_fails_late_does_not_take_the_slab_from_the_next_one(tmp_path: Path) -> None:
    store = PlanFails(tmp_path / "store")
    mine, theirs = socket.socketpair()
    mine.settimeout(_PATIENCE_S)
    hello = Hello("store", "launch", 1, 1, 2, (3, None), 60.0, None, None, os.getpid())
    session = Session(
        hello, store, theirs, may_commit=threading.Event(), hopeless=lambda *_: "", when_over=lambda: None
    )
    slab = Slab.create(tmp_path / "a.slab", slab_bytes(1000, 4000))
    session.take(fill(slab, 1))
    assert store.is_at_plan.wait(_PATIENCE_S) and slab.word is Word.FREE
    session.take(fill(slab, 2))
    store.may_fail.set()
    told = [(each.serial, each.outcome) for each in reports(mine, 2)]
    assert told == [(1, Outcome.FAILED), (2, Outcome.PERSISTED)]
    session.leave(has_died=False)
    assert mine.recv(1) == b""
    session.close()
    mine.close()
    slab.close(remove=True)
