# SPDX-License-Identifier: Apache-2.0
"""An S3 store behind a real proxy refuses, breaks, cuts and slows down: training goes on, nothing committed is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from checkpoint import Checkpointer
from checkpoint.api import open_catalogue
from tests.checkpoint.training import events_of
from tests.system.services.proxy import Mood, Proxy
from tests.system.services.s3 import S3Server

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
_REPOSITORY = Path(__file__).parents[2]
_FLOATS = 1_000_000


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Proxy]:
    with closing(Proxy(s3_server.port)) as made:
        for name, value in {**s3_server.environment, "AWS_ENDPOINT_URL": made.endpoint}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CHECKPOINT_EVENTS", str(tmp_path / "events"))
        monkeypatch.setenv("CHECKPOINT_MEMORY", str(tmp_path))
        yield made


@pytest.fixture
def uri() -> str:
    return f"s3://bucket/{uuid.uuid4().hex}"


def committed(uri: str) -> list[int]:
    return [each.step for each in open_catalogue(uri).committed()]


def state_of(step: int) -> dict[str, object]:
    return {"values": torch.full((_FLOATS,), float(step)), "step": step}


@pytest.mark.parametrize("mood", [Mood.BUSY, Mood.BROKEN, Mood.CUTTING, Mood.AWAY], ids=lambda mood: mood.name.lower())
def test_a_short_outage_costs_no_save(proxy: Proxy, uri: str, mood: Mood) -> None:
    with Checkpointer(uri, every=1) as checkpointer:
        checkpointer.save(1, state_of(1), wait=True)
        proxy.mood = mood
        began = time.monotonic()
        checkpointer.save(2, state_of(2))
        assert time.monotonic() - began < 5, "a step waits for no store"
        while not proxy.refused:
            time.sleep(0.05)
        proxy.mood = Mood.WELL
        checkpointer.wait()
        assert committed(uri) == [1, 2]
        found = open_catalogue(uri)
        assert all(found.verify(each.ref) == [] for each in found.committed())


def test_a_long_outage_fails_saves_aloud_and_the_next_one_after_it_is_committed(
    proxy: Proxy, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_STORE_PATIENCE_S", "2")
    with Checkpointer(uri, every=1) as checkpointer:
        checkpointer.save(1, state_of(1), wait=True)
        proxy.mood = Mood.AWAY
        for step in range(2, 6):
            began = time.monotonic()
            checkpointer.save(step, state_of(step))
            assert time.monotonic() - began < 5, "a step waits for no store"
        checkpointer.wait()
        proxy.mood = Mood.WELL
        assert committed(uri) == [1]
        checkpointer.save(6, state_of(6), wait=True)
        assert committed(uri) == [1, 6]
    happened = [each["event"] for each in events_of(tmp_path / "events")]
    assert "save_failed" in happened and "skipped_save" in happened
    restored = state_of(0)
    with Checkpointer(uri) as checkpointer:
        assert checkpointer.restore(restored) == 6
    assert restored["step"] == 6


def test_a_slow_store_is_only_slow(proxy: Proxy, uri: str) -> None:
    with Checkpointer(uri, every=1) as checkpointer:
        checkpointer.save(1, state_of(1), wait=True)
        proxy.mood = Mood.SLOW
        checkpointer.save(2, state_of(2), wait=True)
        proxy.mood = Mood.WELL
        assert committed(uri) == [1, 2]


def test_a_store_that_is_away_at_the_start_is_told_in_bounded_time(proxy: Proxy, uri: str) -> None:
    proxy.mood = Mood.AWAY
    program = f"from checkpoint import Checkpointer; Checkpointer({uri!r})"
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=_REPOSITORY,
        env={**os.environ, "CHECKPOINT_STORE_PATIENCE_S": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1 and time.monotonic() - began < 60
    assert "does not answer" in ended.stderr and "AWS_ENDPOINT_URL" in ended.stderr
