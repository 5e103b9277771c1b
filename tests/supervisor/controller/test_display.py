# SPDX-License-Identifier: Apache-2.0
"""A live line on a terminal, whole plain lines elsewhere, and never a wait for the reader."""

from __future__ import annotations

import io
import threading
from dataclasses import replace

import pytest

from supervisor.controller import wording
from supervisor.controller.api import LiveNumbers, RunView
from supervisor.controller.display import Display, PlainDisplay, TerminalDisplay, display_for
from supervisor.controller.live_line import progress_fields, progress_line
from supervisor.core.api import Severity
from tests.supervisor.controller import made_up

TERMINAL = {"TERM": "xterm"}


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal; `text` is what was written."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode(self.encoding)


class Blocked(io.StringIO):
    """A reader that takes nothing until `free` is set, as a paused terminal does."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        assert self.free.wait(60)
        return super().write(text)


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture(scope="module")
def view() -> RunView:
    run = made_up.Training()
    run.start(None)
    run.train(1, 120)
    return made_up.view(run)


def test_the_line_tells_step_loss_throughput_attempt_checkpoint_and_ettr(view: RunView) -> None:
    assert progress_line(view).startswith("gpt: step 120  loss 2.346  41k tokens/s  attempt 1  checkpoint 100  ETTR 8")


def test_a_known_pause_and_another_phase_are_named(view: RunView) -> None:
    numbers = replace(view.numbers, pause="evaluation")
    assert "in evaluation" in progress_fields(replace(view, numbers=numbers))
    assert progress_fields(made_up.view(made_up.eventful()))[0] == "SUCCEEDED"


def test_before_the_first_step_the_line_says_what_is_being_waited_for() -> None:
    run = made_up.Training()
    assert progress_fields(made_up.view(run, LiveNumbers())) == ("LAUNCHING", "attempt 1", "no checkpoint")
    run.start(None)
    assert progress_fields(made_up.view(run, LiveNumbers()))[0] == "LAUNCHING: restoring"


@pytest.mark.parametrize("width", [5, 20, 40, 80, 200])
def test_the_line_never_exceeds_the_width_and_cuts_no_field(view: RunView, width: int) -> None:
    line = progress_line(view, width)
    assert len(line) <= width
    fields = line.removeprefix("gpt: ").split("  ")
    assert line[:4] == "gpt:"[:width]
    assert width < 10 or set(fields) <= set(progress_fields(view)) | {"gpt:"}


def test_elsewhere_state_changes_are_whole_lines_with_date_and_severity(view: RunView) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.told(made_up.BEGAN, Severity.WARNING, "rank 1 failed", 1)
    display.output(1, "hello\n")
    display.output(None, "\x1b[31mred\x1b[0m")
    display.close()
    told = f"{wording.date_and_clock(made_up.BEGAN)} warning rank 1 failed"
    assert stream.getvalue().splitlines() == [told, "[rank 1] hello", "[launcher] red", told]


def test_elsewhere_a_progress_line_comes_once_a_minute_and_only_when_it_is_new(view: RunView) -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    for second in range(125):
        moved = replace(view.numbers, step=120 + second)
        display.progress(replace(view, at=view.at + second, numbers=moved))
    display.close()
    assert [line.split("step ")[1].split()[0] for line in stream.getvalue().splitlines()] == ["120", "180", "240"]


def test_without_a_terminal_there_is_no_colour_and_no_unicode(view: RunView) -> None:
    stream = io.StringIO()
    display = display_for(stream, TERMINAL)
    for severity in Severity:
        display.told(made_up.BEGAN, severity, "something happened", 0)
    display.progress(view)
    display.close()
    assert isinstance(display, PlainDisplay)
    assert stream.getvalue().isascii() and "\x1b" not in stream.getvalue()


def test_on_a_terminal_state_changes_are_printed_above_the_line_which_is_gone_at_the_end(
    view: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    display = TerminalDisplay(stream)
    display.progress(view)
    display.told(view.at, Severity.URGENT, "needs a person", 1)
    display.close()
    above, _, below = stream.text.rpartition("\n")
    assert "\x1b[1;31mneeds a person" in above
    assert below == f"{progress_line(view, 79)}\r\x1b[2K"


def test_the_line_is_redrawn_at_most_twice_a_second_and_only_when_something_changed(view: RunView) -> None:
    stream = Terminal()
    display = TerminalDisplay(stream)
    for tenth in range(20):
        moved = replace(view.numbers, step=120 + tenth)
        display.progress(replace(view, at=view.at + tenth / 10, numbers=moved))
    for second in range(2, 10):
        display.progress(replace(view, at=view.at + second, numbers=replace(view.numbers, step=135)))
    display.close()
    assert stream.text.count("step 1") == 4


@pytest.mark.parametrize(
    ("environment", "kind"),
    [(TERMINAL, TerminalDisplay), ({"TERM": "dumb"}, PlainDisplay), ({}, PlainDisplay)],
    ids=["terminal", "dumb terminal", "unknown terminal"],
)
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    environment: dict[str, str], kind: type[Display]
) -> None:
    display = display_for(Terminal(), environment)
    display.close()
    assert isinstance(display, kind)


def test_a_terminal_without_colour_or_unicode_gets_neither() -> None:
    stream = Terminal("ascii")
    display = display_for(stream, {**TERMINAL, "NO_COLOR": "1"})
    for severity in Severity:
        display.told(made_up.BEGAN, severity, "something happened", 0)
    display.close()
    assert [line.split()[1] for line in stream.text.splitlines()] == ["-", "!", "X"]
    assert "\x1b" not in stream.text


def test_the_only_rank_that_is_shown_is_not_named() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream, name_ranks=False)
    display.output(0, "10 %\r 100 %\n")
    display.close()
    assert stream.getvalue() == " 100 %\n"


def told_and_outrun(display: Display) -> None:
    display.told(made_up.BEGAN, Severity.URGENT, "abandoned: out of memory", 1)
    display.output(0, "late output")
    display.close()


def test_what_was_told_last_stands_on_the_last_line_even_if_output_comes_after_it() -> None:
    stream, terminal = io.StringIO(), Terminal()
    told_and_outrun(PlainDisplay(stream))
    told_and_outrun(TerminalDisplay(terminal))
    assert "abandoned: out of memory" in stream.getvalue().splitlines()[-1]
    assert "abandoned: out of memory" in terminal.text.splitlines()[-1]
    assert terminal.text.endswith("\n")


def test_a_reader_that_takes_nothing_never_holds_the_caller_up_and_learns_what_it_missed() -> None:
    stream = Blocked()
    display = PlainDisplay(stream)
    for number in range(5000):
        display.output(0, f"line {number}")
    stream.free.set()
    while "line 0\n" not in stream.getvalue() or "missed" not in stream.getvalue():
        display.output(0, "missed")
    display.close()
    assert "lines were not shown: the output was held up" in stream.getvalue()


def test_a_closed_reader_is_given_up_without_an_error() -> None:
    display = PlainDisplay(Closed())
    for number in range(10):
        display.output(0, f"line {number}")
    display.close()


def test_after_detaching_nothing_more_is_written() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.detach()
    display.output(0, "unseen")
    display.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (75, "1 min 15 s"),
        (59.6, "1 min 00 s"),
        (7500, "2 h 05 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(950, "950"), (999.9, "1k"), (12_345, "12.3k"), (4.56e6, "4.56M")])
def test_quantities_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert wording.quantity(value) == text
