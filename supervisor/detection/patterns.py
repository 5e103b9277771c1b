# SPDX-License-Identifier: Apache-2.0
"""Reads step and loss from the log lines of scripts that report nothing.

The trap: validation lines and the bars of other loops look alike, so a pattern names what it accepts and a log is read
with one pattern once a line with a loss has matched. A line without a pattern's literal costs no regular expression.

    parser, reading = parser.read(line)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

LONGEST_LINE = 4096
"""Characters of a line that are looked at (a bound for a person's expression, too)."""

GROUPS = ("step", "loss", "grad_norm", "tokens")

_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = r"(?:\[[^\]]{1,40}\]:?\s*|\d+:\s+)*"


class PatternError(ValueError):
    """A person's expression cannot be used; the message says where and what is needed."""


@dataclass(frozen=True, slots=True)
class StepReading:
    """What a line says; None for what it leaves out. A loss of nan or inf is kept as such."""

    step: int | None
    loss: float | None
    grad_norm: float | None
    tokens: float | None
    """Tokens as the line counts them."""
    pattern: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A framework's line. Special groups: `epoch` and `total` (steps are counted by epoch), `nans` (skipped as NaN)."""

    name: str
    literals: tuple[str, ...]
    """A line without any of these does not match; empty for a person's expression."""
    expression: re.Pattern[str]

    def match(self, line: str) -> re.Match[str] | None:
        if self.literals and not any(literal in line for literal in self.literals):
            return None
        return self.expression.search(line)


def _pattern(name: str, literals: tuple[str, ...], *parts: str) -> Pattern:
    return Pattern(name, literals, re.compile("".join(parts).replace("NUMBER", _NUMBER), re.IGNORECASE))


MEGATRON = _pattern(
    "megatron",
    ("iteration",),
    r"\biteration\s+(?P<step>\d+)\s*/\s*\d+\s*\|",
    r"(?=(?:.*?\bconsumed tokens:\s*(?P<tokens>NUMBER))?)",
    r"(?=(?:.*?\blm loss:\s*(?P<loss>NUMBER))?)",
    r"(?=(?:.*?\bgrad norm:\s*(?P<grad_norm>NUMBER))?)",
    r"(?=(?:.*?\bnumber of nan iterations:\s*(?P<nans>\d+))?)",
)
TORCHTITAN = _pattern(
    "torchtitan",
    ("step:",),
    r"(?<!validate )\bstep:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>NUMBER)(?:\s+grad_norm:\s*(?P<grad_norm>NUMBER))?",
)
NANOGPT = _pattern("nanogpt", ("iter ",), r"\biter (?P<step>\d+): loss (?P<loss>NUMBER), time ")
HUGGING_FACE = _pattern(
    "hugging face",
    ("{'loss':",),
    r"\{'loss':\s*'?(?P<loss>NUMBER)'?(?=[,}])(?:.*?'grad_norm':\s*'?(?P<grad_norm>NUMBER)'?(?=[,}]))?",
)
LIGHTNING = _pattern(
    "lightning",
    ("Epoch ",),
    r"\bEpoch (?P<epoch>\d+)(?::\s*\d+%\|[^|]*\||/\d+\s+\S+)\s*(?P<step>\d+)/(?P<total>\d+)\s",
    r".*?\b(?:train_)?loss(?:_step)?\s*[=:]\s*(?P<loss>NUMBER)",
)
PLAIN = _pattern(
    "plain",
    ("loss", "Loss"),
    r"^(?!.*\b(?:val(?:id(?:at(?:e|ion))?)?|eval(?:uation)?|test)(?:\b|_)).*?",
    r"\b(?:global[_ ]?)?(?:step|iter(?:ation)?)\b\s*[:=#]?\s*\[?(?P<step>\d+)\b(?:\s*/\s*\d+)?\]?",
    r".{0,200}?\b(?:train(?:ing)?[_ /]?)?loss\b\s*[:=]?\s*(?P<loss>NUMBER)(?![\w.])",
    r"(?=(?:.*?\b(?:grad[_ ]?)?norm\b\s*[:=]?\s*(?P<grad_norm>NUMBER))?)",
)
DEEPSPEED = _pattern("deepspeed", ("skipped=",), r"\bstep=(?P<step>\d+), skipped=\d+, lr=")
PROGRESS_BAR = _pattern(
    "progress bar",
    ("%|",),
    rf"^\s*{_PREFIX}\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) \[(?=.*(?:it/s|s/it))",
    r"(?=(?:.*?\bloss=(?P<loss>NUMBER))?)",
)

WITH_LOSS = (MEGATRON, TORCHTITAN, NANOGPT, HUGGING_FACE, LIGHTNING, PLAIN)
"""Tried in this order until one matches; that one is kept."""

STEP_ONLY = (DEEPSPEED, PROGRESS_BAR)
"""Lines that give the step to frameworks whose loss lines have none."""


def custom_pattern(expression: str) -> Pattern:
    """A person's regular expression with the named groups `step` (needed), `loss`, `grad_norm` and `tokens`.

    Raises:
        PatternError: it does not compile, lacks `step`, or has a group of another name.
    """
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise PatternError(
            f"step pattern {expression!r} is no regular expression: {error.msg} at position {error.pos}; "
            f"needed are named groups, for example 'step (?P<step>\\d+).*loss (?P<loss>\\S+)'"
        ) from error
    strange = sorted(set(compiled.groupindex) - set(GROUPS))
    if strange:
        at = expression.find(f"(?P<{strange[0]}>")
        raise PatternError(
            f"step pattern {expression!r} has an unknown group {strange[0]!r} at position {at}; "
            f"allowed are {', '.join(GROUPS)}"
        )
    if "step" not in compiled.groupindex:
        raise PatternError(
            f"step pattern {expression!r} ends at position {len(expression)} without a group (?P<step>\\d+), which is "
            f"needed; (?P<loss>...), (?P<grad_norm>...) and (?P<tokens>...) are optional"
        )
    return Pattern("custom", (), compiled)


@dataclass(frozen=True, slots=True)
class StepParser:
    """Reads one log; begin with `StepParser()`, or `StepParser(custom=custom_pattern(text))` for a person's."""

    custom: Pattern | None = None
    chosen: Pattern | None = None
    """The first of the patterns with a loss that has matched."""
    step: int | None = None
    """Newest step of a line that has only that, for loss lines without one."""
    bar_total: int = 0
    """Length of the longest bar so far: the training's, while an evaluation's is shorter."""

    def read(self, line: str) -> tuple[StepParser, StepReading | None]:
        """The parser after a line, and what the line says, or None; the last part between carriage returns counts."""
        parser, reading = self, None
        for part in line[-LONGEST_LINE:].split("\r"):
            if part:
                parser, found = parser._read_part(_ANSI.sub("", part) if "\x1b" in part else part)
                reading = found or reading
        return parser, reading

    def _read_part(self, line: str) -> tuple[StepParser, StepReading | None]:
        if self.custom is not None:
            return self, _reading(self.custom, self.custom.match(line), None)
        parser, step_reading = self, None
        if self.chosen in (None, HUGGING_FACE):
            parser, step_reading = self._read_step(line)
        for pattern in WITH_LOSS if self.chosen is None else (self.chosen,):
            reading = _reading(pattern, pattern.match(line), parser.step)
            if reading is not None:
                return replace(parser, chosen=pattern), reading
        return parser, step_reading

    def _read_step(self, line: str) -> tuple[StepParser, StepReading | None]:
        for pattern in STEP_ONLY:
            found = pattern.match(line)
            reading = _reading(pattern, found, None)
            if found is None or reading is None:
                continue
            total = int(found["total"]) if pattern is PROGRESS_BAR else self.bar_total
            if total < self.bar_total:
                return self, None
            return replace(self, step=reading.step, bar_total=total), reading
        return self, None


def _reading(pattern: Pattern, found: re.Match[str] | None, last_step: int | None) -> StepReading | None:
    if found is None:
        return None
    groups = found.groupdict()
    try:
        step = int(groups["step"]) if groups.get("step") else last_step
        loss, grad_norm, tokens = (_number(groups.get(name)) for name in GROUPS[1:])
    except ValueError:
        return None  # a person's group has caught something that is no number: another kind of line
    if step is not None and groups.get("epoch") and groups.get("total"):
        step += int(groups["epoch"]) * int(groups["total"])
    if loss is None and int(groups.get("nans") or 0) > 0:
        loss = float("nan")
    return StepReading(step, loss, grad_norm, tokens, pattern.name)


def _number(text: str | None) -> float | None:
    return float(text.rstrip(",;").replace(",", "")) if text else None
