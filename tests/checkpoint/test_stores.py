# SPDX-License-Identifier: Apache-2.0
"""The stores that need no server keep the contract; and what an object store does beyond it."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from pathlib import Path

import pytest

from checkpoint.api import Store, StoreError
from checkpoint.stores import open_store
from checkpoint.stores.any_fsspec import FsspecObjects
from checkpoint.stores.objects import AwayError
from checkpoint.stores.ranges import RangeReader
from checkpoint.stores.retrying import RetriedObjects
from tests.checkpoint.store_contract import StoreContract


class TestPosix(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(str(tmp_path / "store"))


class TestFsspec(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return open_store(f"memory://{uuid.uuid4().hex}/run")


class Moody:
    """Objects of fsspec that fail as they are told, one entry a call; None lets the call through."""

    def __init__(self, *moods: OSError | None, loses_answer: bool = False, lasts_s: float = 0.0) -> None:
        import fsspec

        uri = f"memory://{uuid.uuid4().hex}"
        self._inner = FsspecObjects(fsspec.filesystem("memory"), fsspec.core.url_to_fs(uri)[1], uri)
        self._moods = list(moods)
        self._loses_answer = loses_answer
        self._lasts_s = lasts_s
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        inner = getattr(self._inner, name)
        if not callable(inner):
            return inner

        def moody(*arguments: object) -> object:
            self.calls += 1
            mood = self._moods.pop(0) if self._moods else None
            if mood is not None and self._loses_answer:
                inner(*arguments)
            if mood is not None:
                time.sleep(self._lasts_s)
                raise mood
            return inner(*arguments)

        return moody


def test_a_store_that_is_away_for_a_moment_is_tried_again_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    moody = Moody(AwayError("slow down"), AwayError("slow down"))
    objects = RetriedObjects(moody, shortest_s=0.001)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        objects.put("key", b"payload")
    assert objects.get("key") == b"payload"
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and "away" in told[0] and "slow down" in told[0] and "back" in told[1]


def test_it_is_given_as_long_as_it_asks_for() -> None:
    objects = RetriedObjects(Moody(AwayError("busy", retry_after_s=0.3)), shortest_s=0.001)  # type: ignore[arg-type]
    began = time.monotonic()
    assert objects.size("key") is None
    assert time.monotonic() - began >= 0.3


def test_patience_ends_with_the_stores_own_words() -> None:
    moody = Moody(*[AwayError("on fire")] * 1000)
    with pytest.raises(AwayError, match="on fire"):
        RetriedObjects(moody, deadline_s=0.05, shortest_s=0.001).get("key")  # type: ignore[arg-type]


def test_patience_begins_with_the_first_failure() -> None:
    moody = Moody(AwayError("one part of many"), lasts_s=0.4)
    RetriedObjects(moody, deadline_s=0.2, shortest_s=0.001).put("key", b"payload")  # type: ignore[arg-type]
    assert moody.calls == 2


@pytest.mark.parametrize("error", [PermissionError(13, "no"), FileNotFoundError(2, "none"), OSError(28, "full")])
def test_what_will_not_be_right_by_itself_is_not_tried_again(error: OSError) -> None:
    moody = Moody(error)
    with pytest.raises(type(error)):
        RetriedObjects(moody).get("key")  # type: ignore[arg-type]
    assert moody.calls == 1


def test_a_commit_whose_answer_was_lost_is_known_for_ones_own() -> None:
    objects = RetriedObjects(Moody(AwayError("cut"), loses_answer=True), shortest_s=0.001)  # type: ignore[arg-type]
    objects.put_new("manifest.json", b"mine")
    assert objects.get("manifest.json") == b"mine"
    with pytest.raises(FileExistsError):
        objects.put_new("manifest.json", b"somebody else's")


def test_ranges_are_read_ahead_in_order_and_from_anywhere() -> None:
    content = bytes(range(256)) * (300 << 10)
    asked = []

    def fetch(start: int, end: int) -> bytes:
        asked.append((start, end))
        return content[start:end]

    with RangeReader(fetch, len(content)) as stream:
        assert stream.read() == content
        assert asked == sorted(asked) and len(asked) == len(set(asked))
        stream.seek(50_000_000)
        assert stream.read(10) == content[50_000_000:50_000_010]
        stream.seek(-4, 2)
        assert stream.read(100) == content[-4:] and stream.read(1) == b""


def test_a_range_that_ends_too_early_is_an_error_and_not_a_short_file() -> None:
    with (
        RangeReader(lambda start, _end: b"x" * (10 - start), 20) as stream,
        pytest.raises(OSError, match="ended after"),
    ):
        stream.read()


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "checkpoint.stores.s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(StoreError, match=r"pip install 'pretraining-supervisor\[s3\]'"):
        open_store("s3://bucket/run")


@pytest.mark.parametrize(
    ("uri", "word"), [("nonsense://x/y", "no store for the scheme"), ("s3://", "bucket is missing")]
)
def test_a_uri_that_names_no_store_is_refused(uri: str, word: str) -> None:
    with pytest.raises(StoreError, match=word):
        open_store(uri)
