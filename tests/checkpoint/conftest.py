# SPDX-License-Identifier: Apache-2.0
"""Keeps the outside environment, a real launch's included, away from every test of this package."""

from __future__ import annotations

import pytest

_NAMES = ("CHECKPOINT_ATTEMPT", "CHECKPOINT_RESUME", "CHECKPOINT_FENCE", "CHECKPOINT_EVENTS", "RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def _no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
