# SPDX-License-Identifier: Apache-2.0
"""The commit marker and the fence on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.api import CheckpointRef, Fence, StoreError
from checkpoint.manifest import (
    FENCE,
    FileRecord,
    Manifest,
    decode_fence,
    decode_manifest,
    encode_fence,
    encode_manifest,
    load_fence,
)
from checkpoint.stores import open_store

MANIFEST = Manifest("run", 2, 300, 4, 1200, ((5, 9),), None, 1.5, {"__0_0.distcp": FileRecord(10, "ab")})
PAYLOAD = encode_manifest(MANIFEST)


def test_a_manifest_survives_its_file() -> None:
    assert decode_manifest(PAYLOAD) == MANIFEST


@given(st.integers(0, len(PAYLOAD) - 1), st.integers(1, 255))
@settings(max_examples=300)
def test_a_manifest_with_any_changed_byte_is_refused(offset: int, mask: int) -> None:
    damaged = bytearray(PAYLOAD)
    damaged[offset] ^= mask
    with pytest.raises(ValueError):  # noqa: PT011 - each of the checks may be the one that notices
        decode_manifest(bytes(damaged))


@given(st.integers(0, len(PAYLOAD) - 1))
@settings(max_examples=50)
def test_a_torn_manifest_is_refused(length: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each of the checks may be the one that notices
        decode_manifest(PAYLOAD[:length])


def test_a_manifest_of_a_later_version_is_refused_by_its_version() -> None:
    with pytest.raises(ValueError, match="its version is 2; this library knows 1"):
        decode_manifest(PAYLOAD.replace(b'"version": 1', b'"version": 2'))


def test_a_fence_survives_its_file() -> None:
    fence = Fence(
        3, 200, 1, (CheckpointRef(100, 1), CheckpointRef(200, 1)), "controller of run x", (CheckpointRef(200, 1),)
    )
    assert decode_fence(encode_fence(fence)) == fence
    assert decode_fence(encode_fence(Fence(1))) == Fence(1)


def test_a_fence_that_cannot_be_read_is_an_error_and_not_no_fence(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert load_fence(store) is None
    (tmp_path / FENCE).write_text('{"version": 1, "attempt": 3}')
    with pytest.raises(StoreError, match=r"FENCE\.json cannot be read.*resume_step.*put back a copy"):
        load_fence(store)


def test_a_uri_of_an_unknown_scheme_names_those_that_work() -> None:
    with pytest.raises(StoreError, match=r"gopher://x: no store for the scheme 'gopher'.*file://"):
        open_store("gopher://x")
    assert open_store("file:///a%20b").location == "/a b"
