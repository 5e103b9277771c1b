# SPDX-License-Identifier: Apache-2.0
"""Two ranks of one launch in this process, each with a writer thread of its own, that meet only in the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from checkpoint import Checkpointer
from checkpoint.api import Store

RANKS = (0, 1)


@contextmanager
def pair(
    folder: Path, *, attempt: int, events: Path | None = None, store: Store | None = None, **options: Any
) -> Iterator[tuple[Checkpointer, Checkpointer]]:
    """Both ranks' checkpointers; at the end rank 1 is closed first, as its part is what rank 0 waits for."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("WORLD_SIZE", "2")
        patch.setenv("CHECKPOINT_ATTEMPT", str(attempt))
        if events is not None:
            patch.setenv("CHECKPOINT_EVENTS", str(events))
        made = []
        for rank in RANKS:
            patch.setenv("RANK", str(rank))
            made.append(stack.enter_context(Checkpointer(folder, store=store, **options)))
        yield made[0], made[1]


def save_on_both(ranks: tuple[Checkpointer, Checkpointer], step: int, state: dict[str, Any]) -> None:
    """Save, and wait until it is known on both ranks what became of it."""
    for each in ranks:
        each.save(step, state)
    for each in ranks:
        each.wait()
