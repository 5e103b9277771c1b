# SPDX-License-Identifier: Apache-2.0
"""What a rank tells its writer reaches the other ranks, whichever writer hears it."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest

from checkpoint.wire import Hello, Lines, Message, Missed, Outcome, Report, encode
from checkpoint.writer_link import WriterLink

_PATIENCE_S = 60.0


class Writers:
    """Where a link finds its writers: the test is each of them, one connection after the other."""

    def __init__(self) -> None:
        self._theirs: queue.Queue[socket.socket] = queue.Queue()

    def connect(self) -> socket.socket:
        mine, theirs = socket.socketpair()
        theirs.settimeout(_PATIENCE_S)
        self._theirs.put(theirs)
        return mine

    def next(self) -> socket.socket:
        return self._theirs.get(timeout=_PATIENCE_S)

    def close(self) -> None:
        """Close what nobody has asked for."""
        while not self._theirs.empty():
            self._theirs.get().close()


@pytest.fixture
def writers() -> Iterator[Writers]:
    found = Writers()
    yield found
    found.close()


@pytest.fixture
def link(writers: Writers) -> Iterator[WriterLink]:
    hello = Hello("/store", "launch", 1, 1, 2, (3, None), 300.0, None, None, 1)
    made = WriterLink(hello, writers, tell_lost=lambda _step, _why: None, when_committed=lambda _stall, _write: None)
    yield made
    made.close(leave=None)


def hear(connection: socket.socket, count: int) -> list[Message]:
    """The next messages behind the Hello."""
    lines, heard = Lines(), list[Message]()
    while len(heard) < count + 1:
        heard += lines.feed(connection.recv(4096))
    assert isinstance(heard[0], Hello)
    return heard[1:]


def test_a_miss_that_a_dying_writer_has_not_noted_is_told_to_the_next_one(link: WriterLink, writers: Writers) -> None:
    first, second = Missed(5, 5, "busy"), Missed(6, 6, "busy")
    link.miss(first)
    link.miss(second)
    with writers.next() as dying:
        assert hear(dying, 2) == [first, second]
        assert not link.has_settled_all()
        dying.sendall(encode(Report(5, 5, Outcome.NOTED)))
        assert link.wait(lambda: list(link._unheard) == [6], _PATIENCE_S)
    with writers.next() as living:
        assert hear(living, 1) == [second]
        living.sendall(encode(Report(6, 6, Outcome.NOTED)))
        assert link.wait(link.has_settled_all, _PATIENCE_S)
    with writers.next() as third:
        link.miss(last := Missed(7, 7, "busy"))
        assert hear(third, 1) == [last]
        assert not link.has_failed(7)
