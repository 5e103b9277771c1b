# SPDX-License-Identifier: Apache-2.0
"""Evidence is kept of every rank within its limit, and what could not be had is named."""

from __future__ import annotations

import http.server
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.agent import evidence, processes
from supervisor.agent.evidence import Kept
from supervisor.agent.record import KnownRank

SLEEPER = "import os\ndef wait_for_peer():\n os.read(os.pipe()[0], 1)\nwait_for_peer()"


@pytest.fixture
def rank() -> Iterator[KnownRank]:
    child = subprocess.Popen([sys.executable, "-c", SLEEPER])
    process = processes.identity_of(child.pid)
    assert process is not None
    until = time.monotonic() + 60
    while "pipe_read" not in processes.wait_channel(child.pid):
        assert time.monotonic() < until
    yield KnownRank(3, 1, process)
    child.kill()
    child.wait()


def kept(folder: Path, ranks: list[KnownRank], limit_s: float = 20.0) -> Kept:
    (folder / "ranks").mkdir(exist_ok=True)
    return evidence.collect(
        ranks,
        rank_folder=folder / "ranks",
        recorder_folder=folder / "recorder",
        evidence_folder=folder / "evidence",
        limit_s=limit_s,
    )


def test_stacks_and_process_state_are_kept_of_a_rank_that_knows_nothing_of_us(tmp_path: Path, rank: KnownRank) -> None:
    found = kept(tmp_path, [rank])
    assert [Path(name).name for name in found.files] == ["process-rank-3.txt", "stacks-rank-3.txt"]
    assert "wait_for_peer" in (tmp_path / "evidence" / "stacks-rank-3.txt").read_text()
    assert "pipe_read" in (tmp_path / "evidence" / "process-rank-3.txt").read_text()
    assert found.notes == ()


def test_a_stopped_rank_has_no_stacks_and_the_note_says_so(tmp_path: Path, rank: KnownRank) -> None:
    os.kill(rank.process.pid, signal.SIGSTOP)
    until = time.monotonic() + 60
    while (now := processes.stat_of(rank.process)) is None or now.state != "T":
        assert time.monotonic() < until
    found = kept(tmp_path, [rank])
    assert [Path(name).name for name in found.files] == ["process-rank-3.txt"]
    (note,) = found.notes
    assert note.startswith(f"rank 3 (pid {rank.process.pid}) is stopped, so ")


def test_a_stopped_rank_is_asked_nothing_since_it_would_never_answer(tmp_path: Path, rank: KnownRank) -> None:
    (tmp_path / "ranks").mkdir()
    os.mkfifo(tmp_path / "ranks" / "nccl-3.pipe")
    reader = os.open(tmp_path / "ranks" / "nccl-3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.kill(rank.process.pid, signal.SIGSTOP)
    until = time.monotonic() + 60
    while (now := processes.stat_of(rank.process)) is None or now.state != "T":
        assert time.monotonic() < until
    with socketserver.UnixStreamServer(
        str(tmp_path / "ranks" / "rank-3.sock"), socketserver.BaseRequestHandler
    ) as server:
        found = kept(tmp_path, [rank], limit_s=60.0)
        server.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.socket.accept()
    assert os.read(reader, 10) == b""
    os.close(reader)
    assert len(found.notes) == 1


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path, rank: KnownRank) -> None:
    (tmp_path / "ranks").mkdir()
    os.mkfifo(tmp_path / "ranks" / "nccl-3.pipe")
    found = kept(tmp_path, [rank], limit_s=60.0)
    assert found.notes == ("the flight recorder's pipe of rank 3 does not answer: No such device or address",)


def test_without_py_spy_one_note_says_what_to_install(
    tmp_path: Path, rank: KnownRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "find_py_spy", lambda: None)
    assert kept(tmp_path, [rank, rank]).notes == (
        "no stacks by py-spy: it is not installed on this node; pip install py-spy",
    )


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        content = f"answer to {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class calls it so)
        pass


def test_the_worker_server_of_a_rank_is_asked_for_stacks_and_flight_recorder(tmp_path: Path, rank: KnownRank) -> None:
    (tmp_path / "ranks").mkdir()
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "ranks" / "rank-3.sock"), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found = kept(tmp_path, [rank])
        server.shutdown()
        thread.join()
    texts = {Path(name).name: Path(name).read_text() for name in found.files}
    assert texts["flight-recorder-rank-3.json"] == "answer to /handler/fr_trace_json"
    assert texts["python-stacks-rank-3.txt"] == "answer to /handler/dump_traceback"


def test_a_worker_server_that_does_not_answer_costs_no_more_than_the_limit(tmp_path: Path, rank: KnownRank) -> None:
    (tmp_path / "ranks").mkdir()
    with socketserver.UnixStreamServer(str(tmp_path / "ranks" / "rank-3.sock"), socketserver.BaseRequestHandler):
        began = time.monotonic()
        found = kept(tmp_path, [rank], limit_s=0.5)
        assert time.monotonic() - began < 10.0
    assert any("worker server of rank 3" in note or "within 0.5 s" in note for note in found.notes)


def test_a_dump_that_the_watchdog_has_written_is_kept(tmp_path: Path, rank: KnownRank) -> None:
    (tmp_path / "recorder").mkdir()
    (tmp_path / "recorder" / "rank-3").write_bytes(b"pickle")
    kept(tmp_path, [rank])
    assert (tmp_path / "evidence" / "flight-recorder-rank-3.pickle").read_bytes() == b"pickle"


def test_a_folder_that_cannot_be_made_is_a_note(tmp_path: Path, rank: KnownRank) -> None:
    (tmp_path / "evidence").touch()
    found = kept(tmp_path, [rank])
    assert found.files == () and "cannot make" in found.notes[0]
