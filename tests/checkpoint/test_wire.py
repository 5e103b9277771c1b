# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks and writer arrive as they were sent, however the stream is cut."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.wire import (
    Bye,
    Drain,
    Drained,
    Hello,
    Holdings,
    Inventory,
    Lines,
    Message,
    Missed,
    Outcome,
    Report,
    Saved,
    TakeReplicas,
    TakingReplicas,
    base_name,
    connect,
    decode,
    encode,
    short_path,
)
from checkpoint.writer_link import drain, start_writer

_MESSAGES: list[Message] = [
    Saved(3, 70, "/dev/shm/a.slab", 0.25),
    Missed(4, 80, "both slots are busy"),
    Report(3, 70, Outcome.COMMITTED, "12 bytes", 0.25, 1.5),
    Report(4, 80, Outcome.FAILED, 'a "quoted"\nline'),
    Drain(),
    Drained(),
    Bye(abandon=True),
    Saved(5, 90, "/dev/shm/a.slab", 0.25, durable=False),
    Inventory(),
    Holdings([{"serial": 3}]),
    TakeReplicas("/store", "10.0.0.1"),
    TakingReplicas("10.0.0.1", 4000, "00"),
]


@given(st.lists(st.sampled_from(_MESSAGES), max_size=5), st.lists(st.integers(1, 60), min_size=1))
@settings(max_examples=50)
def test_messages_survive_any_cut(messages: list[Message], lengths: list[int]) -> None:
    stream, lines, heard = b"".join(map(encode, messages)), Lines(), []
    for index in range(len(stream)):
        length = lengths[index % len(lengths)]
        heard += lines.feed(stream[:length])
        stream = stream[length:]
    assert heard == messages


def test_a_rank_introduces_itself() -> None:
    hello = Hello("/store", "token", 2, 0, 4, (3, None), 300.0, None, None, 77)
    found = decode(encode(hello))
    assert isinstance(found, Hello) and found.location == "/store" and list(found.retention) == [3, None]


@pytest.mark.parametrize("line", [b"", b"[1]", b'{"kind": "other"}', b'{"kind": "saved", "step": 1}', b"{"])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"no message|Expecting"):
        decode(line)


def test_a_socket_in_a_folder_of_any_depth_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener, short_path(folder, f"{base_name('store')}.sock") as path:
        listener.bind(path)
        listener.listen()
        connect(folder, "store", timeout_s=5).close()


def test_without_a_writer_there_is_nothing_to_drain(tmp_path: Path) -> None:
    drain(tmp_path, "store", deadline_s=60)


def test_a_writer_that_cannot_start_says_how_to_see_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(OSError, match=r"-m checkpoint writer /store .*run it by hand"):
        start_writer("/store", 1.0)


def test_a_writer_is_not_taken_for_one_of_a_ranks_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "environment"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nenv > {told}\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    for name in ("RANK", "SUPERVISOR_RANK_FOLDER", "TORCHELASTIC_RUN_ID", "MASTER_PORT", "CHECKPOINT_MEMORY"):
        monkeypatch.setenv(name, "1")
    start_writer("/store", 1.0)
    names = {line.partition("=")[0] for line in told.read_text().splitlines()}
    assert "CHECKPOINT_MEMORY" in names
    assert not names & {"RANK", "SUPERVISOR_RANK_FOLDER", "TORCHELASTIC_RUN_ID", "MASTER_PORT"}
