# SPDX-License-Identifier: Apache-2.0
"""`supervisor diagnose` reads files, folders, gzip and standard input, and answers for a person or as JSON."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.api import LogReadError, LogSource, diagnose, find_sources
from supervisor.diagnosis.command import run
from supervisor.diagnosis.reading import split_lines

LOG = 'step 1 loss 2.0\nTraceback (most recent call last):\n  File "t.py", line 1, in f\n    g()\nTypeError: bad\n'


def answer(*paths: str, output_format: str = "text", stdin: bytes = b"") -> tuple[int, str, str]:
    out, errors = io.StringIO(), io.StringIO()
    code = run(paths, output_format, stdin=io.BytesIO(stdin), out=out, errors=errors)
    return code, out.getvalue(), errors.getvalue()


def test_a_person_gets_cause_action_proof_and_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "rank3.log"
    log.write_text(LOG + "RuntimeError: NCCL communicator was aborted on rank 0.\n")
    code, text, _ = answer(str(log))
    assert code == 0
    assert text.splitlines()[0].startswith("TypeError (rank 3):") and "fix_user" in text.splitlines()[0]
    assert f"{log}:5: TypeError: bad" in text
    assert "Also seen, and not the cause:" in text and "NCCLTimeoutError" in text
    assert "What to do:" in text


def test_json_is_one_object(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LOG)
    _, text, _ = answer(str(tmp_path / "a.log"), output_format="json")
    assert json.loads(text)["reason"] == "TypeError"


def test_a_log_without_a_failure_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n")
    code, text, _ = answer(str(tmp_path / "a.log"))
    assert code == 0 and text.startswith("No failure found in 2 lines of 1 logs.")


def test_standard_input_is_read() -> None:
    _, text, _ = answer("-", stdin=LOG.encode())
    assert "<stdin>:5: TypeError: bad" in text


def test_a_missing_path_is_a_usage_error_that_names_it() -> None:
    code, _, errors = answer("/no/such/file.log")
    assert code == 2 and "/no/such/file.log: there is no such file" in errors


def test_no_path_is_a_usage_error() -> None:
    assert answer()[0] == 2


def test_a_folder_without_logs_is_a_usage_error(tmp_path: Path) -> None:
    code, _, errors = answer(str(tmp_path))
    assert code == 2 and "holds no logs" in errors


def test_a_folder_gives_ranks_and_nodes_from_its_paths(tmp_path: Path) -> None:
    folder = tmp_path / "attempt-2" / "node=n7"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("step 1 loss 2.0\n")
    (folder / "rank-1.log.gz").write_bytes(gzip.compress(LOG.encode()))
    (folder / "model.pt").write_bytes(b"TypeError: not a log")
    diagnosis = diagnose(find_sources(tmp_path))
    assert (diagnosis.reason, diagnosis.rank, diagnosis.node) == ("TypeError", 1, "n7")


def test_a_gzip_file_that_is_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress((LOG * 2000).encode())[:-12])
    assert diagnose(find_sources(tmp_path / "a.log.gz")).reason == "TypeError"


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    gone = LogSource("gone.log", tmp_path / "gone.log")
    with pytest.raises(LogReadError, match=r"gone\.log: cannot be read"):
        diagnose([gone])


def test_an_endless_line_is_cut_and_the_next_line_is_seen() -> None:
    lines = list(split_lines(io.BytesIO(b"x" * 5_000_000 + b"\nValueError: boom\n")))
    assert len(lines) == 2 and len(lines[0]) <= 4096 and lines[1] == "ValueError: boom"


@given(st.binary(max_size=2000))
@settings(max_examples=100, deadline=None)
def test_random_bytes_never_crash(content: bytes) -> None:
    assert answer("-", stdin=content)[0] == 0
