# SPDX-License-Identifier: Apache-2.0
"""The resume argument of scripts that do not use the checkpoint library: which checkpoint, and where it goes."""

from __future__ import annotations


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
