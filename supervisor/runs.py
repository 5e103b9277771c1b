# SPDX-License-Identifier: Apache-2.0
"""Finds runs by name: the folders below $SUPERVISOR_HOME/runs, and links there to those that lie elsewhere."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from supervisor import config
from supervisor.agent import torchrun_command
from supervisor.controller.run_folder import RunFolder
from supervisor.errors import UsageError

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_SHOWN = 10


def script_of(command: Sequence[str]) -> str | None:
    """The training script (or module) that the command names, None when it cannot be told."""
    parsed = torchrun_command.parse(command)
    if parsed is not None:
        return parsed.script
    if not os.path.basename(command[0]).startswith("python"):  # noqa: PTH119  (a word of a command, not yet a path)
        return command[0]
    return next((word for word in command[1:] if not word.startswith("-")), None)


def default_name(command: Sequence[str], working_folder: Path) -> str:
    """The script's name and a short hash of its folder, so that two projects' train.py are two runs."""
    script = working_folder / (script_of(command) or command[0])
    digest = hashlib.sha256(os.fsencode(script.parent.resolve())).hexdigest()[:6]
    stem = _NOT_IN_NAMES.sub("-", script.stem).strip("-._") or "run"
    return f"{stem[:60]}-{digest}"


def known(home: Path | None = None) -> list[Path]:
    """Folders of the runs that have begun, the one that changed last first."""
    dated = [(journal.stat().st_mtime, journal.parent) for journal in (home or _runs()).glob("*/journal.jsonl")]
    return [folder for _, folder in sorted(dated, reverse=True)]


def find(name: str | None) -> Path:
    """The folder of the run `name` (or at that path); of the newest one without a name. Raises UsageError."""
    folders = known()
    if name is None:
        if not folders:
            raise UsageError(f"there is no run in {_runs()} yet; start one with `supervisor run -- COMMAND`")
        return folders[0].resolve()
    for folder in folders:
        if folder.name == name:
            return folder.resolve()
    if RunFolder(Path(name)).journal.is_file():
        return Path(name).resolve()
    raise UsageError(f"there is no run {name!r} in {_runs()}; {_suggestion(name, [each.name for each in folders])}")


def register(name: str, folder: Path) -> None:
    """Make a run that lies elsewhere findable by its name. Raises UsageError when the name is another run's."""
    link = _runs() / name
    if link == folder or link.resolve() == folder.resolve():
        return
    if RunFolder(link).journal.is_file():
        raise UsageError(f"a run {name!r} is already kept in {link.resolve()}; choose another --name, or its --folder")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        link.symlink_to(folder)
    except OSError as error:
        raise UsageError(
            f"cannot make {link}, by which the run is found: {error.strerror}; set SUPERVISOR_HOME to a writable folder"
        ) from error


def _runs() -> Path:
    return config.home() / "runs"


def _suggestion(name: str, names: list[str]) -> str:
    if not names:
        return "none has been started yet"
    near = difflib.get_close_matches(name, names, n=1)
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"did you mean {near[0]!r}? Known are {shown}" if near else f"known are {shown}"
