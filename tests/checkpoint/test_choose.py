# SPDX-License-Identifier: Apache-2.0
"""The order in which checkpoints are tried."""

from __future__ import annotations

import pytest

from checkpoint.api import CheckpointRef
from checkpoint.choose import candidates
from checkpoint.launch import Orders

VISIBLE = [CheckpointRef(100, 1), CheckpointRef(200, 1), CheckpointRef(300, 2)]


@pytest.mark.parametrize(
    ("title", "resume", "attempt", "expected"),
    [
        ("no order: the newest first", None, 3, [(300, 2), (200, 1), (100, 1)]),
        ("an order: the named one, then the older", "200:1", 3, [(200, 1), (100, 1)]),
        ("a named one that is gone is still tried first, and so told of", "250:1", 3, [(250, 1), (200, 1), (100, 1)]),
        ("ranks started again in place go on from their own attempt", "200:1", 2, [(300, 2), (200, 1), (100, 1)]),
        ("also when the attempt began with nothing", "none", 2, [(300, 2)]),
        ("from nothing", "none", 3, []),
    ],
)
def test_candidates_are_tried_in_the_order_of_the_lineage(
    title: str, resume: str | None, attempt: int, expected: list[tuple[int, int]]
) -> None:
    environment = {} if resume is None else {"CHECKPOINT_RESUME": resume}
    found = candidates(VISIBLE, Orders.from_environment(environment), attempt)
    assert [(ref.step, ref.attempt) for ref in found] == expected, title


@pytest.mark.parametrize(
    ("title", "resume", "held", "expected"),
    [
        (
            "what is held and not committed is the newest",
            None,
            (350, 2),
            [(350, 2), (300, 2), (200, 1), (100, 1)],
        ),
        ("but not that of an attempt before the last", None, (350, 1), [(300, 2), (200, 1), (100, 1)]),
        ("nor one that is older than a committed one", None, (250, 2), [(300, 2), (200, 1), (100, 1)]),
        ("a named one goes before what another attempt holds", "200:1", (350, 2), [(200, 1), (100, 1)]),
        ("ranks started again in place go on from what they hold", "200:1", (350, 3), [(350, 3), (200, 1), (100, 1)]),
    ],
)
def test_snapshots_that_only_memory_holds_count_as_far_as_nobody_says_otherwise(
    title: str, resume: str | None, held: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    environment = {} if resume is None else {"CHECKPOINT_RESUME": resume}
    found = candidates(VISIBLE, Orders.from_environment(environment), 3, [CheckpointRef(*held)])
    assert [(ref.step, ref.attempt) for ref in found] == expected, title
