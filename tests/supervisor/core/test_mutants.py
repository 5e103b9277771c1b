# SPDX-License-Identifier: Apache-2.0
"""Every planted bug of the core makes a test of the core fail, so the tests are worth their trust."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervisor.core.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[3]
STORIES = "60"
"""Fewer than in the full run, since the tables catch most of them before."""
QUICK_FIRST = (
    "test_every_pair.py",
    "test_failure_scenarios.py",
    "test_node_and_service_scenarios.py",
    "test_spike_scenarios.py",
    "test_trust_scenarios.py",
    "test_orders.py",
    "test_order_scenarios.py",
    "test_submission_and_return.py",
    "test_accounting.py",
    "test_codec.py",
    "test_properties.py",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core and its tests alone, in a folder where they may be changed."""
    folder = tmp_path_factory.mktemp("mutants")
    shutil.copytree(ROOT / "supervisor" / "core", folder / "supervisor" / "core")
    shutil.copytree(ROOT / "tests" / "supervisor" / "core", folder / "tests" / "supervisor" / "core")
    for package in ("supervisor", "tests", "tests/supervisor"):
        shutil.copy(ROOT / package / "__init__.py", folder / package / "__init__.py")
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    tests = [f"tests/supervisor/core/{name}" for name in QUICK_FIRST]
    quiet = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line"]
    environment = {**os.environ, "CORE_STORIES": STORIES, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *quiet, *tests]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110)


@pytest.mark.system
def test_core_without_a_planted_bug_passes(copy: Path) -> None:
    where = "import supervisor.core as core; print(core.__file__)"
    found = subprocess.run([sys.executable, "-c", where], cwd=copy, capture_output=True, text=True)
    assert found.stdout.startswith(str(copy))
    run = run_tests(copy)
    assert run.returncode == 0, run.stdout


@pytest.mark.system
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.breaks)
def test_planted_bug_is_caught(copy: Path, mutant: Mutant) -> None:
    path = copy / "supervisor" / "core" / mutant.file
    sound = path.read_text()
    assert sound.count(mutant.old) == 1, f"{mutant.file} holds {mutant.old!r} {sound.count(mutant.old)} times, not once"
    path.write_text(sound.replace(mutant.old, mutant.new))
    try:
        run = run_tests(copy)
    finally:
        path.write_text(sound)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout


def test_every_planted_bug_has_its_own_place() -> None:
    for mutant in MUTANTS:
        assert (ROOT / "supervisor" / "core" / mutant.file).read_text().count(mutant.old) == 1, mutant.breaks
