# SPDX-License-Identifier: Apache-2.0
"""The layers hold, and the linter that says so bites."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("supervisor", "checkpoint", "schedulers")
PLANTED = {
    "supervisor/core/values.py": "import supervisor.controller.shell",
    "supervisor/detection/api.py": "import supervisor.agent.api",
    "supervisor/training/ring.py": "import supervisor.core.api",
    "checkpoint/api.py": "import schedulers.api",
    "schedulers/local.py": "import supervisor.core.api",
    "supervisor/controller/shell.py": "import torch",
    "supervisor/agent/link.py": "import rich",
}
DOORS = {
    "supervisor.core": {"api", "codec", "accounting", "incidents", "events", "decisions", "policy", "state", "values"},
    "supervisor.detection": {"api", "patterns", "progress"},
    "supervisor.diagnosis": {"api", "command"},
    "supervisor.agent": {"api", "link", "torchrun_command", "__main__"},
    "supervisor.training": {"ring", "control", "records", "positions", "phases"},
    "checkpoint": {"api"},
    "schedulers": {"api", "registry"},
}
"""Modules of a package that other packages may import; the rest is its own affair."""


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", folder)
    return folder


def test_the_contracts_hold(copied: Path) -> None:
    linted = lint(copied)
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize(("module", "violation"), PLANTED.items(), ids=[*PLANTED])
def test_a_planted_violation_is_caught(copied: Path, module: str, violation: str) -> None:
    path = copied / module
    before = path.read_text()
    path.write_text(f"{before}\n{violation}\n")
    try:
        linted = lint(copied)
    finally:
        path.write_text(before)
    assert linted.returncode == 1, linted.stdout
    assert "BROKEN" in linted.stdout


def package_of(module: str) -> str | None:
    found = [package for package in DOORS if module == package or module.startswith(f"{package}.")]
    return max(found, key=len, default=None)


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_packages_know_each_other_through_their_doors_only() -> None:
    wrong = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            own = package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
            for name in imports_of(path):
                other = package_of(name)
                if other is None or other == own:
                    continue
                door = name.removeprefix(f"{other}.").split(".")[0]
                if door not in DOORS[other] and name != other and not is_exported(other, door):
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def is_exported(package: str, name: str) -> bool:
    """Whether the package's own __init__ offers the name."""
    return name in (ROOT / package.replace(".", "/") / "__init__.py").read_text()
