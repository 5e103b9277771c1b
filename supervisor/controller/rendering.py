# SPDX-License-Identifier: Apache-2.0
"""Status and story on a terminal, with colours and wrapped beside their labels. Only this module imports rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from supervisor.controller import wording
from supervisor.controller.story_text import Line
from supervisor.core.api import Severity

_STYLES = {Severity.NOTE: "", Severity.WARNING: "yellow", Severity.URGENT: "bold red"}
_PHASES = {"TRAINING": "green", "SUCCEEDED": "green", "ABANDONED": "bold red"}
_GRAVE = {"open_incident": "yellow", "proposal": "bold yellow", "frozen": "bold yellow", "outcome": "bold"}


def print_status(rows: Sequence[tuple[str, str]], console: Console | None = None) -> None:
    """Key and value as a table."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows:
        style = _PHASES.get(value, "yellow") if key == "phase" else _GRAVE.get(key, "")
        table.add_row(key.replace("_", " "), Text(wording.printable(value), style=style))
    (console or Console()).print(table)


def print_story(lines: Sequence[Line], console: Console | None = None) -> None:
    """Headings stand out; long texts wrap beside their time or label."""
    target = console or Console()
    for line in lines:
        target.print(_heading(line) if line.is_heading else _row(line))


def _heading(line: Line) -> Padding:
    style = _STYLES[line.severity] or "cyan"
    return Padding(Text(wording.printable(line.text), style=f"bold {style}"), (1, 0, 0, 0))


def _row(line: Line) -> Padding:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=13 if line.indent else 0)
    table.add_column(overflow="fold")
    text = Text(wording.printable(line.text), style=_STYLES[line.severity])
    table.add_row(line.label, text)
    return Padding(table, (0, 0, 0, 2 * line.indent))
