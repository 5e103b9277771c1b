# SPDX-License-Identifier: Apache-2.0
"""Keeps the outside environment, a real launch's included, away from every test of this package.

The writer is a thread here, since a process each would take a second; tests/system has the process.
"""

from __future__ import annotations

import pytest

_NAMES = ("CHECKPOINT_ATTEMPT", "CHECKPOINT_RESUME", "CHECKPOINT_FENCE", "CHECKPOINT_EVENTS", "RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def _no_launch(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CHECKPOINT_WRITER", "thread")
    monkeypatch.setenv("CHECKPOINT_MEMORY", str(tmp_path_factory.mktemp("memory")))
