# SPDX-License-Identifier: Apache-2.0
"""Python tracebacks, line by line: chains, dataloader workers, exception groups, syntax errors.

    Traceback (most recent call last):     -> a new exception begins
      File "train.py", line 9, in main     -> frames, and their code, are indented
    ValueError: boom                       -> the first line that is not is the exception
    During handling of the above ...       -> the next traceback belongs to the same chain

The caller feeds one rank's lines in order. Memory is bounded: of a traceback only its innermost frames are kept.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

HEADER = "Traceback (most recent call last)"
_KEPT_FRAMES = 8
_LONGEST_TRACEBACK = 4000
_LONGEST_GAP = 3

_FRAME = re.compile(r'^\s+File "([^"]*)", line (\d+)(?:, in (.*))?')
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::\s?(.*)|)$")
_BARE = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Closed|Timeout)|Exception))(?::\s(.*)|:?)$"
)
_GROUP_MARGIN = re.compile(r"^\s*(?:\| ?|\+-[+-]+(?: \d+ -+)?\s?)")
_CAUSED_BY = "The above exception was the direct cause of"
_WHILE_HANDLING = "During handling of the above exception"
_SHELL_WORDS = frozenset({"Killed", "Terminated", "Aborted", "Hangup", "Interrupt", "Quit", "Stopped"})
"""What a shell prints when a signal ends its command (bash and dash, from strsignal): not an exception's name."""
_NOT_FATAL = ("Exception ignored in", "Exception in thread", "--- Logging error ---", "Error in atexit")
_CLEANUP_FUNCTIONS = frozenset(
    {"__exit__", "__del__", "__aexit__", "close", "shutdown", "cleanup", "finish", "terminate"}
)


class Link(str, Enum):
    """How an exception follows the one before it in its chain."""

    NONE = "none"
    CAUSED_BY = "caused by"
    WHILE_HANDLING = "while handling"


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of a traceback."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class PythonError:
    """One exception with the innermost frames of its traceback; `line_number` is that of its `Class: message` line."""

    kind: str
    message: str
    line_number: int
    frames: tuple[Frame, ...] = ()
    link: Link = Link.NONE
    has_traceback: bool = True
    fatal: bool = True

    @property
    def text(self) -> str:
        """`Class: message`, as Python prints it."""
        return f"{self.kind}: {self.message}" if self.message else self.kind

    @property
    def is_wrapper(self) -> bool:
        """True for exceptions that only carry another one: torch's `Caught X in ...` and exception groups."""
        return self.message.startswith("Caught ") or self.kind.endswith("ExceptionGroup")

    @property
    def is_cleanup(self) -> bool:
        """True when it was raised by code that tidies up after another exception."""
        return any(frame.function in _CLEANUP_FUNCTIONS for frame in self.frames)


class TracebackReader:
    """Collects the chains of one stream; `feed` answers with an exception as soon as its line is complete."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque(maxlen=_KEPT_FRAMES)
        self._inside = False
        self._lines_inside = 0
        self._link = Link.NONE
        self._fatal = True
        self._since_exception = _LONGEST_GAP + 1

    @property
    def is_inside(self) -> bool:
        """True while the lines of a traceback are being read."""
        return self._inside

    @property
    def wants_more(self) -> bool:
        """True while the next lines may belong to a chain, so that the caller must not leave them out."""
        return self._inside or self._since_exception <= _LONGEST_GAP

    def feed(self, text: str, line_number: int) -> PythonError | None:
        """Read the next line, without its prefixes; the exception that it completes, if any."""
        text = self._without_margin(text)
        if HEADER in text:
            self._begin()
            return None
        if self._inside:
            return self._read_inside(text, line_number)
        return self._read_outside(text, line_number)

    def _without_margin(self, text: str) -> str:
        if "|" in text[:12] or "+-" in text[:12]:
            return _GROUP_MARGIN.sub("", text)
        return text

    def _begin(self) -> None:
        self._frames.clear()
        self._inside = True
        self._lines_inside = 0

    def _cut_off(self) -> None:
        """The process was killed while it wrote, so nobody knows what it was about to say."""
        self._frames.clear()
        self._inside = False
        self._link = Link.NONE
        self._fatal = True
        self._since_exception = _LONGEST_GAP + 1

    def _read_inside(self, text: str, line_number: int) -> PythonError | None:
        self._lines_inside += 1
        if self._lines_inside > _LONGEST_TRACEBACK:
            self._inside = False
            return None
        found = _FRAME.match(text)
        if found is not None:
            self._frames.append(Frame(found[1], int(found[2][:9]), found[3] or ""))
            return None
        if not text or text[0] in " \t":
            return None
        if text.rstrip() in _SHELL_WORDS:
            self._cut_off()
            return None
        exception = _EXCEPTION.match(text)
        if exception is None:
            return None
        return self._complete(exception, line_number, has_traceback=True)

    def _read_outside(self, text: str, line_number: int) -> PythonError | None:
        if text.startswith(_NOT_FATAL):
            self._fatal = False
            self._since_exception = 0
            return None
        if _CAUSED_BY in text or _WHILE_HANDLING in text:
            self._link = Link.CAUSED_BY if _CAUSED_BY in text else Link.WHILE_HANDLING
            self._since_exception = 0
            return None
        found = _FRAME.match(text)
        if found is not None:
            self._frames.append(Frame(found[1], int(found[2][:9]), found[3] or ""))
            self._since_exception = 0
            return None
        bare = _BARE.match(text)
        if bare is not None:
            return self._complete(bare, line_number, has_traceback=bool(self._frames))
        self._since_exception += 1
        if self._since_exception > _LONGEST_GAP:
            self._link = Link.NONE
            self._fatal = True
            self._frames.clear()
        return None

    def _complete(self, found: re.Match[str], line_number: int, *, has_traceback: bool) -> PythonError:
        error = PythonError(
            kind=found[1].removeprefix(
                "__main__."
            ),  # Python 3.10 says where a script's own class is, later ones do not.
            message=(found[2] or "").strip(),
            line_number=line_number,
            frames=tuple(self._frames),
            link=self._link,
            has_traceback=has_traceback,
            fatal=self._fatal,
        )
        self._inside = False
        self._link = Link.NONE
        self._frames.clear()
        self._since_exception = 0
        self._fatal = True
        return error


def parse_tracebacks(text: str) -> Iterator[PythonError]:
    """The exceptions of a text that holds one process's output, such as an error file's call stack."""
    reader = TracebackReader()
    for number, line in enumerate(text.splitlines(), start=1):
        error = reader.feed(line, number)
        if error is not None:
            yield error


def chains(errors: list[PythonError]) -> list[list[PythonError]]:
    """Errors of one stream, in order, joined to chains by their links."""
    joined: list[list[PythonError]] = []
    for error in errors:
        if joined and error.link is not Link.NONE:
            joined[-1].append(error)
        else:
            joined.append([error])
    return joined
