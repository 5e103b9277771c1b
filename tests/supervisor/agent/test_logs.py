# SPDX-License-Identifier: Apache-2.0
"""Logs have a stable place, are followed line by line, and do not outgrow their limit."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from supervisor.agent import logs
from supervisor.agent.facts import FactReader, is_commit
from supervisor.agent.logs import RotationRefusedError, Tail

KIB = 1024


def torchrun_tree(folder: Path, local_rank: int) -> Path:
    tree = folder / "torchrun" / "none_abc123" / "attempt_0" / str(local_rank)
    tree.mkdir(parents=True)
    for stream in logs.STREAMS:
        (tree / f"{stream}.log").write_text(f"{stream} of local rank {local_rank}\n")
    return tree


def test_a_ranks_log_is_found_by_its_rank(tmp_path: Path) -> None:
    assert not logs.link(tmp_path, 9, 1, is_torchrun=True)
    torchrun_tree(tmp_path, 1)
    assert logs.link(tmp_path, 9, 1, is_torchrun=True) and logs.link(tmp_path, 9, 1, is_torchrun=True)
    assert (tmp_path / "rank-9" / "stdout.log").read_text() == "stdout of local rank 1\n"
    assert logs.of_rank(tmp_path, 9).stderr.read_text() == "stderr of local rank 1\n"


def test_links_still_lead_there_when_the_run_folder_is_moved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    torchrun_tree(tmp_path / "a", 0)
    logs.link(tmp_path / "a", 0, 0, is_torchrun=True)
    (tmp_path / "a").rename(tmp_path / "b")
    assert logs.of_rank(tmp_path / "b", 0).stdout.read_text() == "stdout of local rank 0\n"


def test_without_torchrun_the_launchers_output_is_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "launcher.out").write_text("hello\n")
    (tmp_path / "launcher.err").write_text("")
    assert logs.link(tmp_path, 0, 0, is_torchrun=False)
    assert logs.of_rank(tmp_path, 0).stdout.read_text() == "hello\n"


def test_compressed_parts_and_the_plain_rest_are_the_whole_log(tmp_path: Path) -> None:
    path, whole = tmp_path / "stdout.log", b""
    with path.open("wb", buffering=0) as writer:
        for number in range(6):
            chunk = b"".join(b"line %07d of %d\n" % (each, number) for each in range(4000))
            writer.write(chunk)
            whole += chunk
            logs.rotate(path, 64 * KIB)
        parts = sorted(tmp_path.glob("stdout.log.*.gz"), key=lambda part: int(part.name.split(".")[2]))
        assert len(parts) >= 3
        assert b"".join(gzip.decompress(part.read_bytes()) for part in parts) + path.read_bytes().lstrip(b"\0") == whole
        assert path.stat().st_size == len(whole)
        assert path.stat().st_blocks * 512 <= 72 * KIB
    assert not logs.rotate(path, 64 * KIB)


def test_only_so_many_parts_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with path.open("wb", buffering=0) as writer:
        for _ in range(logs.MAX_PARTS + 3):
            writer.write(b"x" * 32 * KIB)
            assert logs.rotate(path, 16 * KIB)
    numbers = sorted(int(part.name.split(".")[2]) for part in tmp_path.glob("stdout.log.*.gz"))
    assert numbers == list(range(4, logs.MAX_PARTS + 4))


def test_a_log_whose_file_system_cannot_punch_holes_is_left_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise RotationRefusedError("Operation not supported")

    monkeypatch.setattr(logs, "_punch", refuse)
    path = tmp_path / "stdout.log"
    path.write_bytes(b"y" * 64 * KIB)
    with pytest.raises(RotationRefusedError, match="not supported"):
        logs.rotate(path, 16 * KIB)
    assert path.read_bytes() == b"y" * 64 * KIB
    assert list(tmp_path.glob("*.gz")) == []


def test_only_whole_lines_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    tail = Tail(path)
    assert tail.lines() == []
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert tail.lines() == ["one"]
        file.write(b"o\n 50%|##|\r 60%|##|\rthree\n")
        assert tail.lines() == ["two", " 50%|##|", " 60%|##|", "three"]
        assert tail.lines() == []


def test_a_log_that_lost_its_front_is_followed_from_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"z" * (64 * KIB - 1) + b"\nlast\n")
    logs.rotate(path, 16 * KIB)
    assert Tail(path).lines()[-1] == "last"
    assert len(Tail(path).lines()[0]) < 16 * KIB


def test_event_lines_are_passed_on_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    reader = FactReader(tmp_path)
    path = tmp_path / "checkpoint.rank-1.jsonl"
    path.write_text('{"event": "committed", "step": 5}\nnot json\n[1]\n{"event": "sta')
    assert reader.read() == [{"event": "committed", "step": 5}]
    with path.open("a") as file:
        file.write('ged"}\n')
    assert reader.read() == [{"event": "staged"}]
    assert is_commit({"event": "committed"}) and not is_commit({"event": "staged"})
