# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a script that keeps its own: which are whole, by the format of their folder or by a glob.

Only the newest is looked at thoroughly, since it is the one that a kill may have cut short.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkpoint.api import StoreError, open_foreign
from supervisor.core.api import FOREIGN, Checkpoint


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint; the step is None where its name does not tell it."""

    step: int | None
    path: str


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where such checkpoints are: in the folder or store `uri`, or what matches `pattern` there or in the folder."""

    uri: str | None
    pattern: str | None
    working_folder: str


def saved(where: Whereabouts) -> list[Saved] | None:
    """The whole ones, oldest first; None when nobody has said where they are.

    Raises:
        StoreError: the store cannot be read.
    """
    try:
        if where.pattern is not None:
            return _by_pattern(where)
        return None if where.uri is None else _by_format(_located(where))
    except OSError as error:
        raise StoreError(f"the script's checkpoints cannot be listed: {error}") from error


def as_checkpoints(found: list[Saved] | None) -> tuple[Checkpoint, ...] | None:
    """As the core knows them; None when no step is known."""
    known = None if found is None else tuple(Checkpoint(each.step, FOREIGN) for each in found if each.step is not None)
    return None if found and not known else known


def chosen(found: list[Saved], resume: Checkpoint | None, counts: Callable[[Checkpoint], bool]) -> Saved | None:
    """The newest that counts, at or before `resume` where it is given."""
    for each in reversed(found):
        if each.step is None:
            if resume is None:
                return each
        elif (resume is None or each.step <= resume.step) and counts(Checkpoint(each.step, FOREIGN)):
            return each
    return None


def _located(where: Whereabouts) -> str:
    """The store's URI; a relative path counts from the working folder."""
    assert where.uri is not None
    return where.uri if "://" in where.uri else str(Path(where.working_folder, Path(where.uri).expanduser()))


def _by_format(uri: str) -> list[Saved]:
    catalogue = open_foreign(uri)
    entries = [each for each in catalogue.entries() if each.is_whole]
    while entries and not ((found := catalogue.verified(entries[-1].folder)) and found.is_whole):
        entries.pop()
    return [Saved(each.step, each.uri) for each in entries]


def _by_pattern(where: Whereabouts) -> list[Saved]:
    """Matches whose folder is of a known format must be whole by it; of the others, files must not be cut short."""
    assert where.pattern is not None
    folders = [where.working_folder]
    if where.uri is not None and "://" not in where.uri:
        folders.insert(0, _located(where))
    matches = (glob.glob(str(Path(folder, where.pattern))) for folder in folders)  # noqa: PTH207  (may be absolute)
    paths = sorted((Path(path) for path in next((each for each in matches if each), [])), key=_age)
    folders_of_paths = {str(path.parent) for path in paths}
    partial = {each.uri for folder in folders_of_paths for each in open_foreign(folder).entries() if not each.is_whole}
    paths = [path for path in paths if str(path) not in partial]
    while paths and not _is_whole(paths[-1]):
        paths.pop()
    return [Saved(_step(path), str(path)) for path in paths]


def _is_whole(path: Path) -> bool:
    catalogue = open_foreign(str(path.parent))
    if path.is_file():
        return catalogue.is_file_whole(path.name)
    found = catalogue.verified(path.name)
    return found is None or found.is_whole


def _age(path: Path) -> tuple[int, float]:
    step = _step(path)
    return (-1 if step is None else step, path.stat().st_mtime)


def _step(path: Path) -> int | None:
    numbers = re.findall(r"\d+", path.name)
    return int(numbers[-1]) if numbers else None
