# SPDX-License-Identifier: Apache-2.0
"""Tells quickly which lines of a log may matter: nearly all lines of a training differ by their digits only.

The trap: a literal with digits must be looked for by its shape too, or its lines would be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from supervisor.diagnosis.launcher import LITERALS as LAUNCHER_LITERALS
from supervisor.diagnosis.literals import trie_pattern
from supervisor.diagnosis.signatures import Matcher

_DIGITS = str.maketrans("123456789", "000000000")
_KEPT_SHAPES = 8192
_PROGRESS = re.compile(r"(?i)\b(?:step|iteration|iter|global_step)\b\W{0,6}\d")
_EXTRA_LITERALS = ("traceback (most", "error", "exception", "keyboardinterrupt", 'file "')


class Shapes:
    """What a line's shape (lower case, every digit a zero) says: whether it may matter, and whether it tells a step.

    A training's lines differ by their digits, so nearly all of them are looked up and not searched. A line that holds
    a literal has the literal's shape, so none that matters is lost.
    """

    def __init__(self, literals: Iterable[str]) -> None:
        self._interesting = re.compile(trie_pattern(literal.translate(_DIGITS) for literal in literals))
        self._known: dict[str, tuple[bool, bool]] = {}

    def of(self, text: str) -> tuple[bool, bool]:
        """Whether a failure may stand in the line, and whether it is one of progress."""
        shape = text.lower().translate(_DIGITS)
        known = self._known.get(shape)
        if known is None:
            is_progress = "loss" in shape and _PROGRESS.search(shape) is not None
            known = (self._interesting.search(shape) is not None, is_progress)
            if len(self._known) >= _KEPT_SHAPES:
                self._known.clear()
            self._known[shape] = known
        return known


@cache
def shapes_of(matcher: Matcher) -> Shapes:
    """Of one signature table, compiled once."""
    return Shapes({*matcher.literals, *_EXTRA_LITERALS, *LAUNCHER_LITERALS})
