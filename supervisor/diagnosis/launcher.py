# SPDX-License-Identifier: Apache-2.0
"""What launchers say about the ends of ranks: torchrun's block and error files, DeepSpeed, srun, Kubernetes.

A launcher tells when it noticed an end, with a resolution of a second, so equal times carry no order (see
torch/distributed/elastic/multiprocessing/errors/__init__.py). With an error file the rank itself wrote the time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from supervisor.diagnosis.exits import as_signal
from supervisor.diagnosis.literals import trie_pattern
from supervisor.diagnosis.tracebacks import PythonError, TracebackReader, parse_tracebacks

LITERALS = (
    "exitcode",
    "return code =",
    "local_rank:",
    "srun: error:",
    "exitcode:",
    "exit code",
    "<signals.",
    "killing subprocess",
    "failures:",
    "root cause (first",
    "  host  ",
    "  traceback : ",
)
"""In lower case: the strings of which a line holds one when `LauncherReader` has any use for it outside a block."""

_ANY_LITERAL = re.compile(trie_pattern(LITERALS))
_SIGNAL_WORDS = {
    "Bus error": -7,
    "Segmentation fault": -11,
    "Aborted": -6,
    "Floating point exception": -8,
    "Illegal instruction": -4,
    "Hangup": -1,
    "Interrupt": -2,
}
_BLOCK_RANK = re.compile(r"^\s*rank\s*: (\d{1,7}) \(local_rank: (\d{1,5})\)")
_BLOCK_HOST = re.compile(r"^\s*host\s*: (\S+)")
_BLOCK_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d{1,3})\s*\(pid: (\d{1,10})\)")
_BLOCK_TRACEBACK = re.compile(r"^\s*traceback : (.*)")
_BLOCK_START = re.compile(r"^(?:Failures:|Root Cause \(first observed failure\):)")
_BLOCK_END = re.compile(r"^\s*={10,}")
_AGENT = re.compile(r"failed \(exitcode: (-?\d{1,3})\) local_rank: (\d{1,5})(?: \(pid: (\d{1,10})\))?")
_DEEPSPEED = re.compile(r"exits with return code = (-?\d{1,3})")
_KILLING = re.compile(r"sigkill_handler\] Killing subprocess")
_SRUN = re.compile(
    r"srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d{1,3})|([A-Z][a-z]+(?: [a-z]+)*))"
)
_CONTAINER = re.compile(r"(?i)\bexit ?code:? (\d{1,3})\b")
_DIED_WITH = re.compile(r"died with <Signals\.\w+: (\d{1,2})>")


@dataclass(frozen=True, slots=True)
class ReportedExit:
    """One end of a rank as a launcher tells it; a code of None means only that the launcher killed it."""

    code: int | None
    line_number: int
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None


class LauncherReader:
    """Reads a launcher's lines in order; `exits` and `errors` fill up as it goes, both bounded."""

    _KEPT = 256

    def __init__(self) -> None:
        self.exits: list[ReportedExit] = []
        self.errors: list[tuple[int | None, str | None, PythonError]] = []
        self.in_block = False
        self._rank: int | None = None
        self._local_rank: int | None = None
        self._node: str | None = None
        self._traceback: TracebackReader | None = None

    def feed(self, text: str, line_number: int) -> bool:
        """Read one line without its prefixes; True when the line belongs to the launcher's failure block."""
        if self._traceback is not None and self._feed_traceback(text, line_number):
            return True
        if _BLOCK_START.match(text):
            self.in_block = True
            self._rank = self._local_rank = self._node = None
            return True
        if self.in_block and _BLOCK_END.match(text):
            self.in_block = False
            return True
        return self._feed_field(text, line_number) or self._feed_line(text, line_number)

    def has_use_for(self, text: str) -> bool:
        """False when `feed` would not look at the line; cheap."""
        return self.in_block or self.in_traceback or _ANY_LITERAL.search(text.lower()) is not None

    @property
    def in_traceback(self) -> bool:
        """True while the lines of a rank's traceback are being repeated."""
        return self._traceback is not None

    def _feed_traceback(self, text: str, line_number: int) -> bool:
        assert self._traceback is not None
        if not text.startswith("  ") or re.match(r"^\[\d+\]:|^-{10}|^={10}", text):
            self._traceback = None
            return False
        error = self._traceback.feed(text[2:], line_number)
        if error is not None and len(self.errors) < self._KEPT:
            self.errors.append((self._rank, self._node, error))
        return True

    def _feed_field(self, text: str, line_number: int) -> bool:
        found = _BLOCK_HOST.match(text)
        if found is not None:
            self._node = found[1]
            return self.in_block
        found = _BLOCK_RANK.match(text)
        if found is not None:
            self._rank, self._local_rank = int(found[1]), int(found[2])
            return True
        found = _BLOCK_EXIT.match(text)
        if found is not None:
            self._add(ReportedExit(int(found[1]), line_number, self._rank, self._local_rank, self._node))
            return True
        found = _BLOCK_TRACEBACK.match(text)
        if found is not None:
            if found[1].startswith("Traceback"):
                self._traceback = TracebackReader()
                self._traceback.feed(found[1], line_number)
            return True
        return False

    def _feed_line(self, text: str, line_number: int) -> bool:
        found = _AGENT.search(text)
        if found is not None:
            self._add(ReportedExit(int(found[1]), line_number, None, int(found[2])))
            return True
        found = _DEEPSPEED.search(text)
        if found is not None:
            self._add(ReportedExit(int(found[1]), line_number))
            return True
        if _KILLING.search(text):
            self._add(ReportedExit(None, line_number))
            return True
        return self._feed_scheduler(text, line_number)

    def _feed_scheduler(self, text: str, line_number: int) -> bool:
        found = _SRUN.search(text)
        if found is not None:
            code = int(found[3]) if found[3] else _SIGNAL_WORDS.get(found[4])
            if code is not None and found[4] not in {"Killed", "Terminated"}:
                first = re.match(r"\d+", found[2])
                self._add(ReportedExit(as_signal(code), line_number, int(first[0]) if first else None, None, found[1]))
            return True
        found = _DIED_WITH.search(text)
        if found is not None:
            self._add(ReportedExit(-int(found[1]), line_number))
            return False
        found = _CONTAINER.search(text)
        if found is not None and int(found[1]):
            self._add(ReportedExit(as_signal(int(found[1])), line_number))
        return False

    def _add(self, reported: ReportedExit) -> None:
        if len(self.exits) < self._KEPT:
            self.exits.append(reported)


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """What a rank wrote of its own end through torch elastic's `record`: `at` is epoch seconds."""

    errors: tuple[PythonError, ...]
    at: float | None


def parse_error_file(text: str) -> ErrorFile | None:
    """Read torch elastic's error.json; None when the text is not one."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, str):
        return ErrorFile(tuple(parse_tracebacks(message)), None)
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    errors = tuple(parse_tracebacks(str(extra.get("py_callstack", ""))))
    if not errors:
        errors = tuple(parse_tracebacks(str(message.get("message", ""))))
    return ErrorFile(errors, _epoch_seconds(extra.get("timestamp")))


def _epoch_seconds(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
