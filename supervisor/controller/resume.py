# SPDX-License-Identifier: Apache-2.0
"""The resume argument of scripts that do not use the checkpoint library: which checkpoint, and where it goes."""

from __future__ import annotations

import glob
import re
from pathlib import Path


def resumed_command(
    command: tuple[str, ...], argument: tuple[str, ...], checkpoint: str | None, step: int | None
) -> tuple[str, ...]:
    """`command` with the resume argument behind it; unchanged when there is nothing to resume from.

    `{checkpoint}` and `{step}` in the argument's words are filled in; the step is empty where it is not known.
    """
    if checkpoint is None:
        return command
    named = {"{checkpoint}": checkpoint, "{step}": "" if step is None else str(step)}
    return (*command, *(_filled(word, named) for word in argument))


def _filled(word: str, named: dict[str, str]) -> str:
    for placeholder, value in named.items():
        word = word.replace(placeholder, value)
    return word


def newest_by_pattern(pattern: str) -> str | None:
    """The match of the glob `pattern` with the largest last number in its name; by age where names have none."""
    found = [Path(path) for path in glob.glob(pattern)]  # noqa: PTH207  (the pattern may be absolute)
    return str(max(found, key=_age)) if found else None


def _age(path: Path) -> tuple[int, float]:
    numbers = re.findall(r"\d+", path.name)
    return (int(numbers[-1]) if numbers else -1, path.stat().st_mtime)
