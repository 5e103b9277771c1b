# SPDX-License-Identifier: Apache-2.0
"""Where an agent keeps things: its own folder in the run folder, and the rank folder in memory.

The rank folder holds what ranks and agent map into memory, and the ranks' sockets. Its path must stay short (a socket's
path has 107 bytes at most) and nobody else may get in, because the worker server answers whoever can connect.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.agent.api import LAST_WORDS_FILE

_SHORT_CHARS = 16


class FolderError(Exception):
    """A folder cannot be used; the message names it and what to do."""


@dataclass(frozen=True, slots=True)
class AgentFolders:
    """Folders of one node's agent."""

    run_folder: Path
    run: str
    node: str

    @property
    def own(self) -> Path:
        return self.run_folder / "agents" / self.node

    @property
    def record(self) -> Path:
        return self.own / "attempt.json"

    @property
    def lock(self) -> Path:
        return self.own / "lock"

    @property
    def last_words(self) -> Path:
        """Why the agent cannot work here, for the controller; not there while it works."""
        return self.own / LAST_WORDS_FILE

    @property
    def exits(self) -> Path:
        return self.own / "exits"

    def exit_file(self, name: str) -> Path:
        """Where the launcher's exit code is kept."""
        return self.exits / name

    def make(self) -> None:
        """Raises FolderError."""
        try:
            self.exits.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderError(f"cannot make {self.own}: {error.strerror}; make the run folder writable") from error


def shared_root(environment: Mapping[str, str]) -> Path:
    """The best place for mapped files: memory where there is some, else the temporary folder."""
    for candidate in ("/dev/shm", environment.get("XDG_RUNTIME_DIR", "")):  # noqa: S108  (checked for its owner below)
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def node_folder(root: Path, folders: AgentFolders) -> Path:
    """Parent of the rank folders of one run on one node; a pure function of its arguments and our user id."""
    digest = hashlib.sha256(os.fsencode(folders.run_folder.absolute())).hexdigest()[:8]
    run = f"{folders.run[:_SHORT_CHARS]}-{digest}"
    return root / f"pretraining-supervisor-{os.getuid()}" / run / _shortened(folders.node)


def make_rank_folder(root: Path, folders: AgentFolders, attempt: int) -> Path:
    """A new, empty folder that only this user may enter; those of older attempts go. Raises FolderError."""
    parent = node_folder(root, folders)
    folder = parent / f"attempt-{attempt}"
    try:
        for each in (parent.parent.parent, parent.parent, parent):
            each.mkdir(mode=0o700, exist_ok=True)
            _check_owner(each)
        for older in parent.iterdir():
            shutil.rmtree(older, ignore_errors=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise FolderError(f"cannot make {folder}: {error.strerror}; free or repair {root}") from error
    return folder


def remove_rank_folder(folder: Path) -> None:
    """Give the memory back, and the parents too once they are empty; an attempt that never began has no such folder."""
    if not folder.is_absolute():
        return
    shutil.rmtree(folder, ignore_errors=True)
    for parent in (folder.parent, folder.parent.parent, folder.parent.parent.parent):
        try:
            parent.rmdir()
        except OSError:
            return


def _shortened(name: str) -> str:
    if len(name) <= _SHORT_CHARS:
        return name
    return f"{name[: _SHORT_CHARS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _check_owner(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise FolderError(
            f"{folder} belongs to user {status.st_uid} with mode {stat.filemode(status.st_mode)}, but must be ours "
            f"alone (user {os.getuid()}, drwx------); remove it or have its owner remove it"
        )
