# SPDX-License-Identifier: Apache-2.0
"""A shared page appears whole or not at all."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.training import pages

LIMIT_BYTES = 8192


@pytest.fixture
def scarce_space() -> Iterator[None]:
    """Let no file grow beyond the limit, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("scarce_space")
def test_without_space_there_is_an_error_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        pages.create(tmp_path / "page", 2 * LIMIT_BYTES, b"head")
    assert list(tmp_path.iterdir()) == []


def test_a_page_begins_with_its_head_and_is_else_zero(tmp_path: Path) -> None:
    page = pages.create(tmp_path / "page", 4096, b"head")
    assert page.bytes[:] == b"head".ljust(4096, b"\0")


def test_what_one_writes_the_other_reads(tmp_path: Path) -> None:
    writer = pages.create(tmp_path / "page", 4096, b"")
    reader = pages.Page(tmp_path / "page", is_writable=False)
    writer.words[511] = 2**64 - 1
    assert reader.words[511] == 2**64 - 1
    with pytest.raises(TypeError, match="read-only"):
        reader.words[0] = 1
