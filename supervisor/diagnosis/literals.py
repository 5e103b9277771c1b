# SPDX-License-Identifier: Apache-2.0
"""The literal strings of which a line must hold one before a regular expression can match it.

A literal that is not really required would hide a failure, so the walk over a pattern gives up a run of characters
whenever it is unsure (groups with flags, quantifiers, classes), and never a branch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHORTEST = 3
_QUANTIFIERS = "*?{"
_MAX_CHOICES = 24


def required_literals(pattern: str) -> tuple[str, ...]:
    """Lower-case strings, one of which is in every line (in lower case) that `pattern` matches; () when unknown.

    >>> required_literals(r"Xid \\(PCI:[^)]*\\): 79,|fallen off the bus")
    ('xid (pci:', 'fallen off the bus')
    """
    literals: list[str] = []
    for branch in _branches(_without_flags(pattern)):
        best = _of_branch(branch)
        if not best:
            return ()
        literals.extend(best)
    return tuple(dict.fromkeys(literals))


def _without_flags(pattern: str) -> str:
    return re.sub(r"^\(\?[a-z]+\)", "", pattern)


def _of_branch(branch: str) -> tuple[str, ...]:
    """The most telling requirement of one branch: its longest run, or one of a group's own requirements."""
    candidates: list[tuple[str, ...]] = []
    run = ""
    position = 0
    while position < len(branch):
        kind, value, end = _token(branch, position)
        optional = end < len(branch) and branch[end] in _QUANTIFIERS
        if kind == "char" and not optional:
            run += value
            if end < len(branch) and branch[end] == "+":
                candidates.append((run,))
                run = ""
        else:
            candidates.append((run,))
            run = ""
            if kind == "group" and not optional:
                candidates.append(required_literals(value))
        position = _after_quantifier(branch, end)
    candidates.append((run,))
    usable = [c for c in candidates if c and len(c) <= _MAX_CHOICES and min(map(len, c)) >= _SHORTEST]
    best = max(usable, key=lambda c: min(map(len, c)), default=())
    return tuple(literal.lower() for literal in best)


def _token(text: str, position: int) -> tuple[str, str, int]:
    """One piece of a pattern from `position`: its kind (char, group, other), its content, and where it ends."""
    char = text[position]
    if char == "\\":
        following = text[position + 1 : position + 2]
        kind = "other" if following.isalnum() else "char"
        return kind, following, position + 2
    if char == "[":
        return "other", "", _end_of_class(text, position)
    if char == "(":
        end = _end_of_group(text, position)
        return "group", re.sub(r"^\?(?:P<\w+>|[a-z]*:)", "", text[position + 1 : end - 1]), end
    return ("other" if char in ".^$" else "char"), char, position + 1


def _after_quantifier(text: str, position: int) -> int:
    while position < len(text) and text[position] in "*+?":
        position += 1
    if position < len(text) and text[position] == "{":
        return text.index("}", position) + 1
    return position


def _end_of_class(text: str, position: int) -> int:
    position += 1
    position += text[position : position + 1] == "^"
    position += text[position : position + 1] == "]"
    while position < len(text) and text[position] != "]":
        position += 2 if text[position] == "\\" else 1
    return position + 1


def _end_of_group(text: str, position: int) -> int:
    depth = 0
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 2
            continue
        if char == "[":
            position = _end_of_class(text, position)
            continue
        depth += (char == "(") - (char == ")")
        position += 1
        if depth == 0:
            return position
    return position


def _branches(pattern: str) -> list[str]:
    found: list[str] = []
    start = position = 0
    while position < len(pattern):
        if pattern[position] == "|":
            found.append(pattern[start:position])
            start = position + 1
        position = _token(pattern, position)[2]
    found.append(pattern[start:])
    return found


def trie_pattern(literals: Iterable[str]) -> str:
    """A regular expression that finds any of `literals`, with shared beginnings tried once."""
    trie: dict[str, object] = {}
    for literal in sorted(set(literals)):
        node = trie
        for char in literal:
            if "" in node:
                break
            child = node.setdefault(char, {})
            assert isinstance(child, dict)
            node = child
        else:
            node.clear()
            node[""] = True
    return _render(trie)


def _render(trie: dict[str, object]) -> str:
    if "" in trie:
        return ""
    parts: list[str] = []
    for char, child in trie.items():
        assert isinstance(child, dict)
        parts.append(re.escape(char) + _render(child))
    return parts[0] if len(parts) == 1 else "(?:" + "|".join(parts) + ")"
