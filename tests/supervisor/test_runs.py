# SPDX-License-Identifier: Apache-2.0
"""Runs have names: a default one from the script, and folders that are found by them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor import runs
from supervisor.errors import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUPERVISOR_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "runs"


def begun(folder: Path, at: float = 0.0) -> Path:
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("")
    os.utime(folder / "journal.jsonl", (at, at))
    return folder


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (("torchrun", "--nproc-per-node", "2", "a/train.py", "--lr", "1"), "a/train.py"),
        (("python", "-u", "train.py"), "train.py"),
        (("python3", "-m", "torch.distributed.run", "train.py"), "train.py"),
        (("./start.sh", "--fast"), "./start.sh"),
        (("torchrun", "--standalone"), None),
    ],
)
def test_the_script_is_found_in_the_command(command: tuple[str, ...], script: str | None) -> None:
    assert runs.script_of(command) == script


def test_the_default_name_tells_projects_apart_and_is_always_the_same(tmp_path: Path) -> None:
    one = runs.default_name(("python", "train gpt.py"), tmp_path / "one")
    other = runs.default_name(("python", "train gpt.py"), tmp_path / "other")
    assert one != other
    assert one.startswith("train-gpt-") and len(one) == len("train-gpt-") + 6
    assert one == runs.default_name(("torchrun", str(tmp_path / "one" / "train gpt.py")), tmp_path)


def test_without_a_name_the_newest_run_is_found(home: Path) -> None:
    begun(home / "old", 100.0)
    begun(home / "new", 200.0)
    assert runs.find(None) == home / "new"
    assert runs.find("old") == home / "old"


def test_a_run_is_also_found_by_its_folder(tmp_path: Path) -> None:
    folder = begun(tmp_path / "elsewhere")
    assert runs.find(str(folder)) == folder


def test_a_run_that_lies_elsewhere_is_found_by_its_name_once_registered(tmp_path: Path) -> None:
    folder = begun(tmp_path / "elsewhere")
    runs.register("gpt", folder)
    runs.register("gpt", folder)
    assert runs.find("gpt") == folder


def test_a_run_in_its_usual_place_needs_no_link(home: Path) -> None:
    runs.register("gpt", home / "gpt")
    assert not home.exists()


def test_a_name_that_another_run_has_is_refused(tmp_path: Path, home: Path) -> None:
    begun(home / "gpt")
    with pytest.raises(UsageError, match="a run 'gpt' is already kept in"):
        runs.register("gpt", tmp_path / "elsewhere")


def test_a_link_to_a_run_that_is_gone_is_replaced(tmp_path: Path) -> None:
    runs.register("gpt", tmp_path / "gone")
    folder = begun(tmp_path / "elsewhere")
    runs.register("gpt", folder)
    assert runs.find("gpt") == folder


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(UsageError, match="set SUPERVISOR_HOME to a writable folder"):
        runs.register("gpt", tmp_path / "elsewhere")


def test_an_unknown_run_lists_the_known_ones(home: Path) -> None:
    with pytest.raises(UsageError, match="none has been started yet"):
        runs.find("gpt")
    begun(home / "llama", 1.0)
    with pytest.raises(UsageError, match="known are llama"):
        runs.find("gpt")
