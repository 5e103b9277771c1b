# SPDX-License-Identifier: Apache-2.0
"""What `supervisor run` shows while it runs: state changes, the ranks' output, and how training goes.

The trap: a terminal that was paused (Ctrl-S), a full pipe or a closed one must never hold up the controller. So all
text goes through a bounded queue to a writer thread; what does not fit is dropped and counted.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
from collections.abc import Mapping
from typing import Protocol, TextIO

from supervisor.controller import wording
from supervisor.controller.api import RunView
from supervisor.controller.live_line import progress_line
from supervisor.core.api import Severity

REFRESH_S = 0.5
"""Shortest time between two progress lines on a terminal."""
PLAIN_PROGRESS_S = 60.0
"""Time between two progress lines elsewhere."""
_QUEUED_TEXTS = 2000
_CLOSE_S = 2.0

_CLEAR_LINE = "\r\x1b[2K"
_RESET = "\x1b[0m"
_COLOURS = {Severity.NOTE: "\x1b[2m", Severity.WARNING: "\x1b[33m", Severity.URGENT: "\x1b[1;31m"}
_MARKS = {Severity.NOTE: "\u00b7", Severity.WARNING: "\u25b2", Severity.URGENT: "\u2716"}
_ASCII_MARKS = {Severity.NOTE: "-", Severity.WARNING: "!", Severity.URGENT: "X"}


class Display(Protocol):
    """Calls return at once, may come from any thread and never raise."""

    def told(self, at: float, severity: Severity, text: str, incident: int) -> None:
        """A state change: what, why, what next."""

    def output(self, rank: int | None, line: str) -> None:
        """A line of a rank's output; of the launcher's when `rank` is None."""

    def progress(self, view: RunView) -> None:
        """How training goes; may come as often as it likes, and costs little when nothing changed."""

    def detach(self) -> None:
        """The stream is gone (the terminal hung up): write nothing more."""

    def close(self) -> None:
        """Write what is queued; what was told last stands at the end, and no progress line behind it."""


class Writer:
    """Writes texts to a stream from its own thread; gives up the stream for good when it fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._texts: queue.Queue[str | None] = queue.Queue(_QUEUED_TEXTS)
        self._dropped = 0
        self._is_detached = False
        self._thread = threading.Thread(target=self._write_all, name="display", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Queue `text`, or drop it when the stream has stopped taking any."""
        try:
            if self._dropped:
                self._texts.put_nowait(f"({self._dropped} lines were not shown: the output was held up)\n")
                self._dropped = 0
            self._texts.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def detach(self) -> None:
        """From any thread, and from a signal handler: takes no lock."""
        self._is_detached = True

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._texts.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)

    def _write_all(self) -> None:
        while (text := self._texts.get()) is not None:
            if self._is_detached:
                continue
            try:
                self._stream.write(text)
                if self._texts.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                self._is_detached = True
                _silence(self._stream)


def _silence(stream: TextIO) -> None:
    """Point the stream's descriptor nowhere, or Python complains of it once more when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class PlainDisplay:
    """Whole lines without colour, for files, pipes and logs."""

    def __init__(self, stream: TextIO, *, name_ranks: bool = True) -> None:
        self._writer = Writer(stream)
        self._name_ranks = name_ranks
        self._shown_at = float("-inf")
        self._shown = ""
        self._told = ""
        self._is_last = True

    def told(self, at: float, severity: Severity, text: str, incident: int) -> None:
        del incident  # the core's texts name it
        self._told = f"{wording.date_and_clock(at)} {severity.value:<7} {wording.printable(text)}\n"
        self._is_last = True
        self._writer.write(self._told)

    def output(self, rank: int | None, line: str) -> None:
        self._is_last = False
        self._writer.write(_output_line(rank, line, name_ranks=self._name_ranks))

    def progress(self, view: RunView) -> None:
        if view.at - self._shown_at < PLAIN_PROGRESS_S:
            return
        line = progress_line(view)
        if line != self._shown:
            self._shown_at, self._shown = view.at, line
            self._writer.write(f"{wording.date_and_clock(view.at)} {'status':<7} {line}\n")

    def detach(self) -> None:
        self._writer.detach()

    def close(self) -> None:
        if not self._is_last:
            self._writer.write(self._told)
        self._writer.close()


class TerminalDisplay:
    """State changes and output scroll by; below them one progress line is kept up to date."""

    def __init__(self, stream: TextIO, *, name_ranks: bool = True, colour: bool = True) -> None:
        self._writer = Writer(stream)
        self._name_ranks = name_ranks
        self._colour = colour
        self._marks = _MARKS if _takes_unicode(stream) else _ASCII_MARKS
        self._lock = threading.Lock()
        self._shown_at = float("-inf")
        self._line = ""
        self._told = ""
        self._is_last = True

    def told(self, at: float, severity: Severity, text: str, incident: int) -> None:
        del incident  # the core's texts name it
        mark = self._marks[severity]
        body = wording.printable(text)
        if self._colour:
            start = _COLOURS[severity]
            mark = f"{start}{mark}{_RESET}"
            body = f"{start}{body}{_RESET}" if severity is Severity.URGENT else body
        self._told = f"{wording.clock(at)} {mark} {body}\n"
        self._is_last = True
        self._above(self._told)

    def output(self, rank: int | None, line: str) -> None:
        self._is_last = False
        self._above(_output_line(rank, line, name_ranks=self._name_ranks))

    def progress(self, view: RunView) -> None:
        with self._lock:
            if 0.0 <= view.at - self._shown_at < REFRESH_S:
                return
            self._shown_at = view.at
            line = progress_line(view, shutil.get_terminal_size().columns - 1)
            if line != self._line:
                self._line = line
                self._writer.write(_CLEAR_LINE + line)

    def detach(self) -> None:
        self._writer.detach()

    def close(self) -> None:
        with self._lock:
            if self._line:
                self._writer.write(_CLEAR_LINE)
            self._line = ""
            if not self._is_last:
                self._writer.write(self._told)
            self._writer.close()

    def _above(self, text: str) -> None:
        with self._lock:
            self._writer.write(f"{_CLEAR_LINE}{text}{self._line}" if self._line else text)


def display_for(stream: TextIO, environment: Mapping[str, str], *, name_ranks: bool = True) -> Display:
    """A live line on a terminal, plain lines elsewhere; colours unless NO_COLOR is set (no-color.org)."""
    if stream.isatty() and environment.get("TERM", "dumb") != "dumb":
        return TerminalDisplay(stream, name_ranks=name_ranks, colour=not environment.get("NO_COLOR"))
    return PlainDisplay(stream, name_ranks=name_ranks)


def _output_line(rank: int | None, line: str, *, name_ranks: bool) -> str:
    shown = wording.printable(line)
    if rank is None:
        return f"[launcher] {shown}\n"
    return f"[rank {rank}] {shown}\n" if name_ranks else f"{shown}\n"


def _takes_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")
