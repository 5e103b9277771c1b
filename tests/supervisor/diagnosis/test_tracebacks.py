# SPDX-License-Identifier: Apache-2.0
"""Tracebacks are read as Python prints them: chains, workers, groups, syntax errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.diagnosis.clues import root_of_chain
from supervisor.diagnosis.signatures import default_matcher
from supervisor.diagnosis.tracebacks import chains, parse_tracebacks


def run_script(tmp_path: Path, source: str) -> str:
    script = tmp_path / "train.py"
    script.write_text(source)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True).stderr


def root_text(text: str) -> str:
    joined = chains(list(parse_tracebacks(text)))
    root = root_of_chain(joined[-1], default_matcher())
    assert root is not None
    return root.text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("raise ValueError('boom')", "ValueError: boom", id="plain"),
        pytest.param("raise ValueError", "ValueError", id="without a message"),
        pytest.param("def f(:\n  pass", "SyntaxError: invalid syntax", id="syntax"),
        pytest.param("import no_such_module_x", "ModuleNotFoundError: No module named 'no_such_module_x'", id="import"),
        pytest.param(
            "try:\n  {}['lr']\nexcept KeyError as e:\n  raise ValueError('no lr in config') from e",
            "ValueError: no lr in config",
            id="raise from keeps the program's own words",
        ),
        pytest.param(
            "try:\n  raise OSError(28, 'No space left on device')\nexcept OSError as e:\n  raise TypeError from e",
            "OSError: [Errno 28] No space left on device",
            id="a cause that the table knows wins over what it was turned into",
        ),
        pytest.param(
            "def close():\n  None.stop()\ntry:\n  raise TypeError('first')\nfinally:\n  close()",
            "TypeError: first",
            id="an error while tidying up is not the cause",
        ),
        pytest.param("class Boom(Exception): pass\nraise Boom('x')", "Boom: x", id="own class"),
    ],
)
def test_the_root_of_a_real_traceback_is_found(tmp_path: Path, source: str, expected: str) -> None:
    assert root_text(run_script(tmp_path, source)) == expected


def test_the_original_traceback_of_a_dataloader_worker_is_the_cause() -> None:
    text = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    for x in loader:
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "worker.py", line 3, in _worker_loop
    data = fetcher.fetch(index)
  File "set.py", line 7, in __getitem__
    return self.names[label]
KeyError: 'd00'
"""
    assert root_text(text) == "KeyError: 'd00'"


def test_a_group_of_exceptions_gives_its_member() -> None:
    text = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 4, in <module>
  |     raise ExceptionGroup("two", [TypeError("a")])
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | TypeError: a
    +------------------------------------
"""
    errors = list(parse_tracebacks(text))
    assert [error.text for error in errors if not error.is_wrapper] == ["TypeError: a"]


def test_frames_are_kept_from_the_innermost_and_bounded() -> None:
    frames = "".join(f'  File "m{i}.py", line {i + 1}, in f{i}\n    call()\n' for i in range(500))
    (error,) = parse_tracebacks(f"Traceback (most recent call last):\n{frames}RecursionError: too deep\n")
    assert error.frames[-1].file == "m499.py" and len(error.frames) <= 8


def test_an_ignored_exception_is_not_fatal() -> None:
    header = "Exception ignored in: <function W.__del__>\nTraceback (most recent call last):\n"
    text = header + '  File "w.py", line 1, in d\n    x\nTypeError: x\n'
    (error,) = parse_tracebacks(text)
    assert not error.fatal


@pytest.mark.parametrize("word", ["Killed", "Terminated", "Aborted"])
def test_a_traceback_that_a_kill_cut_off_says_nothing(word: str) -> None:
    cut = (
        "Traceback (most recent call last):\n"
        '  File "/opt/bin/torchrun", line 6, in <module>\n'
        "    sys.exit(main())\n"
        '  File "/opt/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper\n'
        f"{word}\n"
    )
    assert list(parse_tracebacks(cut)) == []
    later = cut + 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n' + "KeyError: 'lr'\n"
    assert [(error.text, len(error.frames)) for error in parse_tracebacks(later)] == [("KeyError: 'lr'", 1)]
