# SPDX-License-Identifier: Apache-2.0
"""No line that a row of the table matches is left out because of its shape."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.shapes import Shapes, shapes_of
from supervisor.diagnosis.signatures import default_matcher

EXAMPLES = [(row.name, line) for row in default_matcher().signatures for line in row.examples]


def test_every_example_of_the_table_is_looked_at() -> None:
    shapes = shapes_of(default_matcher())
    assert [(name, line) for name, line in EXAMPLES if not shapes.of(line)[0]] == []


@given(st.sampled_from(EXAMPLES), st.text("0123456789", max_size=6))
@settings(max_examples=100, deadline=None)
def test_lines_before_it_do_not_change_what_is_said_of_a_line(example: tuple[str, str], digits: str) -> None:
    shapes = Shapes(default_matcher().literals)
    shapes.of(f"step {digits} loss {digits}.{digits}")
    assert shapes.of(f"step {digits}: {example[1]}")[0]


def test_progress_is_told_from_other_lines() -> None:
    shapes = shapes_of(default_matcher())
    said = [shapes.of(line)[1] for line in ("step 12 loss 2.5", "Iteration: 7 | lm loss 1", "loss 2.5", "step 12")]
    assert said == [True, True, False, False]
    assert not shapes.of("step 12 loss 2.5")[0]


def test_memory_does_not_grow_with_the_log() -> None:
    shapes = Shapes(["xid (pci:0"])
    for number in range(20_000):
        shapes.of("x" * (number % 300) + chr(0x4E00 + number))
    assert len(shapes._known) <= 8192
    assert shapes.of("NVRM: Xid (PCI:7")[0] and not shapes.of("xid (pci)")[0]
