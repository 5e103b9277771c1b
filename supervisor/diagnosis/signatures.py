# SPDX-License-Identifier: Apache-2.0
"""The signature table and the engine that finds a line's row.

Patterns keep to what RE2 and Hyperscan can do (no look-around, no back references), so the engine behind `Matcher`
can be changed without touching a row. The order of the rows is their priority: the first that matches wins.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

from supervisor.diagnosis.literals import required_literals, trie_pattern
from supervisor.diagnosis.model import CATEGORY_OF_REASON, Action

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Trust(str, Enum):
    """How far a row's line is believed, from the most to the least; see the head of signatures.toml."""

    KERNEL = "kernel"
    LOCAL = "local"
    PYTHON = "python"
    SOFT = "soft"
    SETTING = "setting"
    PEER = "peer"
    WATCHDOG = "watchdog"
    WRAPPER = "wrapper"
    CLEANUP = "cleanup"


SYMPTOMS = frozenset({Trust.PEER, Trust.WATCHDOG, Trust.WRAPPER, Trust.CLEANUP})
BLAMES = frozenset({"rank", "node", "peer", "user", "service", "storage", "none"})


class SignatureError(ValueError):
    """A row of the signature table is not usable; the message names the row and what is wrong."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One message family: how to know it, what it means, what to do."""

    name: str
    pattern: str
    reason: str
    action: Action
    trust: Trust
    blames: str
    explanation: str
    suggestion: str
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...] = ()
    service: str | None = None
    fatal: bool = False

    @property
    def is_symptom(self) -> bool:
        """True when the line tells of a failure elsewhere, so that it is a cause only where nothing else is found."""
        return self.trust in SYMPTOMS


def parse_signatures(text: str) -> tuple[Signature, ...]:
    """Read a signature table. Raises SignatureError naming the row that is not usable."""
    rows = tuple(_signature(row) for row in tomllib.loads(text).get("signature", ()))
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise SignatureError(f"signature {name!r} stands twice in the table; give each row a name of its own")
    return rows


def _signature(row: Mapping[str, Any]) -> Signature:
    name = row.get("name", "?")
    try:
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        signature = Signature(**{**values, "action": Action(values["action"]), "trust": Trust(values["trust"])})
        re.compile(signature.pattern)
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise SignatureError(
            f"signature {name!r} cannot be used: {error}; compare it with the head of the table"
        ) from error
    if signature.reason not in CATEGORY_OF_REASON or signature.blames not in BLAMES or not signature.examples:
        raise SignatureError(f"signature {name!r} needs a known reason, a known value of blames and an example")
    return signature


class Matcher:
    """Finds the first row that matches a line; one literal search over the line comes before any regular expression."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self.signatures = tuple(signatures)
        rows: list[tuple[Signature, tuple[str, ...]]] = []
        literals: set[str] = set()
        for row in self.signatures:
            needed = required_literals(row.pattern)
            if not needed:
                raise SignatureError(
                    f"signature {row.name!r} has no literal of 3 characters in each branch to search for"
                )
            literals.update(needed)
            rows.append((row, needed))
        self._rows = tuple(rows)
        self._compiled: dict[str, re.Pattern[str]] = {}
        self.literals = frozenset(literals)
        self._literal = re.compile(trie_pattern(literals))

    def match(self, text: str) -> Signature | None:
        """The first row that matches `text`, a line without its prefixes."""
        lowered = text.lower()
        if self._literal.search(lowered) is None:
            return None
        for row, needed in self._rows:
            if any(literal in lowered for literal in needed) and self._pattern(row).search(text) is not None:
                return row
        return None

    def _pattern(self, row: Signature) -> re.Pattern[str]:
        """Compiled when it is first needed: a failure's lines meet few of the rows."""
        if row.name not in self._compiled:
            self._compiled[row.name] = re.compile(row.pattern)
        return self._compiled[row.name]

    @property
    def fallback(self) -> Signature:
        """The last row, which speaks for an exception whose class no row knows."""
        return self.signatures[-1]


@cache
def default_matcher() -> Matcher:
    """The table that ships with the package; it is immutable, so one is enough."""
    table = resources.files("supervisor.diagnosis").joinpath("signatures.toml").read_text(encoding="utf-8")
    return Matcher(parse_signatures(table))
