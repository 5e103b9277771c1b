# SPDX-License-Identifier: Apache-2.0
"""The one line that says how training goes: step, loss, throughput, attempt, last checkpoint, ETTR. Pure."""

from __future__ import annotations

from supervisor.controller import wording
from supervisor.controller.api import RunView
from supervisor.core.api import Phase, RunState

_SEPARATOR = "  "


def progress_fields(view: RunView) -> tuple[str, ...]:
    """The parts of the line in the order in which they are shown."""
    state, numbers = view.state, view.numbers
    step = state.step if numbers.step is None else numbers.step
    checkpoint = state.checkpoints[-1].step if state.checkpoints else None
    fields = (
        None if state.phase is Phase.TRAINING else _phase(state),
        None if step is None else f"step {step}",
        None if numbers.loss is None else f"loss {numbers.loss:.4g}",
        None if numbers.tokens_per_s is None else f"{wording.quantity(numbers.tokens_per_s)} tokens/s",
        None if numbers.pause is None else f"in {numbers.pause}",
        f"attempt {state.attempt}",
        "no checkpoint" if checkpoint is None else f"checkpoint {checkpoint}",
        None if view.ettr is None else f"ETTR {wording.percent(view.ettr)}",
        None if state.incident == 0 else f"incidents {state.incident}",
        "frozen" if state.frozen else None,
    )
    return tuple(field for field in fields if field is not None)


def progress_line(view: RunView, width: int | None = None) -> str:
    """The fields in one line of at most `width` characters; whole fields are left out at its end, never cut."""
    line = f"{view.state.run}:"
    for number, field in enumerate(progress_fields(view)):
        longer = f"{line}{' ' if number == 0 else _SEPARATOR}{field}"
        if width is not None and len(longer) > width:
            break
        line = longer
    return line if width is None else line[:width]


def _phase(state: RunState) -> str:
    if state.phase is not Phase.LAUNCHING:
        return wording.phase(state)
    if not state.nodes:
        return "LAUNCHING"
    return "LAUNCHING: restoring" if state.imported else "LAUNCHING: importing"
