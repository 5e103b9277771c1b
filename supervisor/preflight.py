# SPDX-License-Identifier: Apache-2.0
"""What can be known to go wrong before anything is started: each finding says what to do.

The trap: our import names are common words. A `checkpoint.py` beside the training script, or PyPI's own `supervisor`,
would be imported in place of ours.
"""

from __future__ import annotations

import enum
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from supervisor import runs
from supervisor.agent import torchrun_command
from supervisor.config import Settings

PACKAGES = ("checkpoint", "nccl_probe", "schedulers", "supervisor")
_SUFFIXES = (".py", ".pyc")
_LEAST_FREE_BYTES = 2 * 2**30
_LEAST_FREE_SHARE = 0.03
_ASK_S = 20.0
_FIND_FOREIGN = (
    "import importlib.metadata as m\nfor d in m.distributions(name='supervisor'): print(d.version, d.locate_file(''))"
)


class DiskUsage(Protocol):
    """As shutil.disk_usage answers; bytes."""

    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


class Level(str, enum.Enum):
    GOOD = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    text: str


def findings(
    settings: Settings, command: Sequence[str], working_folder: Path, environment: Mapping[str, str]
) -> list[Finding]:
    """Everything that is wrong or doubtful about running `command` with `settings`; nothing is left behind."""
    found = [*_program(command, working_folder, environment)]
    found += [Finding(Level.ERROR, each.message) for each in _conflicts(settings, command)]
    if not settings.launch.allow_shadowing:
        folders = import_folders(command, working_folder, environment)
        found += [Finding(Level.ERROR, text) for text in shadowed(folders)]
        found += [Finding(Level.ERROR, text) for text in _foreign_supervisor(command, environment)]
    return found + folder_findings(settings, working_folder)


def folder_findings(settings: Settings, working_folder: Path) -> list[Finding]:
    """Whether the run's folder and that of its checkpoints take and return data."""
    found = writable(settings.run.folder, "run folder", "--folder")
    checkpoints = local_path(settings.checkpoint.uri, working_folder)
    if checkpoints is not None:
        found += writable(checkpoints, "checkpoint folder", "--checkpoint")
    return found


def _program(command: Sequence[str], working_folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    program = command[0]
    path = str(working_folder / program) if "/" in program else program
    if shutil.which(path, path=environment.get("PATH", os.defpath)) is None:
        yield Finding(Level.ERROR, f"there is no program {program!r}; correct the command, or give the whole path")
        return
    parsed = torchrun_command.parse(command)
    if parsed is not None and parsed.script is None:
        yield Finding(Level.ERROR, f"the command names no training script: {' '.join(command)}")
    script = _script_file(command, working_folder)
    if script is not None and not script.exists():
        yield Finding(Level.ERROR, f"there is no training script {script}; correct its path")


def _script_file(command: Sequence[str], working_folder: Path) -> Path | None:
    """The script when it is a file of Python; None for a module and for other programs."""
    script = runs.script_of(command)
    if script is None or not script.endswith(".py"):
        return None
    return working_folder / script


def _conflicts(settings: Settings, command: Sequence[str]) -> tuple[torchrun_command.Conflict, ...]:
    parsed = torchrun_command.parse(command)
    return () if parsed is None else torchrun_command.conflicts(parsed, nodes=settings.run.nodes)


def import_folders(command: Sequence[str], working_folder: Path, environment: Mapping[str, str]) -> list[Path]:
    """Where the ranks look for modules before they come to installed packages."""
    script = _script_file(command, working_folder)
    folders = [working_folder if script is None else script.parent]
    python_path = environment.get("PYTHONPATH")
    if python_path:
        folders += [working_folder / entry for entry in python_path.split(os.pathsep)]
    return list(dict.fromkeys(folders))


def shadowed(folders: Sequence[Path]) -> Iterator[str]:
    """One text for each module in `folders` that would be imported in place of ours.

    A folder without __init__.py does no harm: a regular package goes before a namespace package wherever it lies.
    """
    for name in PACKAGES:
        for folder in folders:
            taken = _module_in(folder, name)
            if taken is not None and not _is_ours(folder, name):
                yield (
                    f"{taken} takes the place of our package {name!r} when the training script imports it; rename "
                    "or remove it (or set allow_shadowing = true in [launch] for a script that uses none of ours)"
                )


def _module_in(folder: Path, name: str) -> Path | None:
    package = folder / name / "__init__.py"
    if package.exists():
        return folder / name
    return next((file for file in (folder / f"{name}{suffix}" for suffix in _SUFFIXES) if file.exists()), None)


def _is_ours(folder: Path, name: str) -> bool:
    ours = importlib.util.find_spec(name)
    places = [] if ours is None or ours.submodule_search_locations is None else list(ours.submodule_search_locations)
    return any((folder / name).resolve() == Path(place).resolve() for place in places)


def _foreign_supervisor(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """PyPI's process manager of that name owns the same folder as our package."""
    interpreter = interpreter_of(command, environment)
    if interpreter is None:
        return
    if Path(interpreter).absolute() == Path(sys.executable).absolute():
        found = [
            f"{each.version} {each.locate_file('')}" for each in importlib.metadata.distributions(name="supervisor")
        ]
    else:
        found = _asked(interpreter, environment)
    for line in found:
        version, _, place = line.partition(" ")
        yield (
            f"PyPI's package 'supervisor' {version} is installed in {place} and takes the place of ours; run "
            f"`{interpreter} -m pip uninstall supervisor`, then install pretraining-supervisor again"
        )


def _asked(interpreter: str, environment: Mapping[str, str]) -> list[str]:
    """Empty when the interpreter cannot be asked, since the launch itself will tell what is wrong with it."""
    try:
        answer = subprocess.run(
            [interpreter, "-I", "-c", _FIND_FOREIGN],
            check=False,
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            env=dict(environment),
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def interpreter_of(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The Python that runs the script: named in the command, or in the first line of torchrun's file."""
    program = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if program is None or Path(command[0]).name.startswith("python"):
        return program
    try:
        with Path(program).open("rb") as file:
            first = file.readline(512).decode(errors="replace")
    except OSError:
        return None
    words = first.removeprefix("#!").split()
    is_python = first.startswith("#!") and words and Path(words[0]).name.startswith("python")
    return words[0] if is_python else None


def local_path(uri: str | None, working_folder: Path) -> Path | None:
    """The folder that a checkpoint URI names, None for one that is not in a file system."""
    if uri is None:
        return None
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(parts.path)
    return None if "://" in uri else working_folder / Path(uri).expanduser()


def writable(folder: Path, what: str, flag: str) -> list[Finding]:
    """Writes a file into `folder` (or, while there is none, into what it will lie in) and reads it back."""
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not existing.is_dir():
        return [Finding(Level.ERROR, f"the {what} {folder} cannot be made: {existing} is a file; name another: {flag}")]
    content = os.urandom(64)
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".write-test-") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if Path(file.name).read_bytes() != content:
                return [
                    Finding(Level.ERROR, f"{what} {folder}: what was written to it did not come back; name another")
                ]
        disk = shutil.disk_usage(existing)
    except OSError as error:
        return [
            Finding(
                Level.ERROR,
                f"the {what} {folder} cannot be written: {error.strerror}; free space, fix its rights, "
                f"or name another with {flag}",
            )
        ]
    full = nearly_full(folder, what, disk)
    return [Finding(Level.GOOD, f"{what} {folder}: written and read back"), *([] if full is None else [full])]


def nearly_full(folder: Path, what: str, disk: DiskUsage) -> Finding | None:
    """A warning when the disk of `folder` has little room left, by its size and by what a run writes."""
    if disk.free >= min(_LEAST_FREE_BYTES, _LEAST_FREE_SHARE * disk.total):
        return None
    free = f"{disk.free / 2**30:.1f} GiB of {disk.total / 2**30:.0f} GiB"
    return Finding(Level.WARNING, f"{what} {folder}: the disk is nearly full ({free} free); make room")
