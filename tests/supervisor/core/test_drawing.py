# SPDX-License-Identifier: Apache-2.0
"""The drawn state machine is that of the code."""

from __future__ import annotations

from pathlib import Path

from supervisor.core.values import FINAL_PHASES, Phase
from tests.supervisor.core import drawing

DOCUMENT = Path(__file__).parents[3] / "docs" / "state-machine.md"


def test_document_is_current() -> None:
    renew = "python -m tests.supervisor.core.drawing > docs/state-machine.md"
    assert DOCUMENT.read_text() == drawing.document(), f"out of date; renew it with `{renew}`"


def test_every_phase_is_explained_and_reached_and_left() -> None:
    edges = drawing.transitions()
    assert set(drawing.meanings(Phase)) == {phase.name for phase in Phase}
    assert {after for _, after in edges} == set(Phase)
    assert {before for before, _ in edges} == set(Phase)
    assert all(names == ["RunSubmitted"] for (before, _), names in edges.items() if before in FINAL_PHASES)
