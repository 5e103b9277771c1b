# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the system tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.services.s3 import S3Server
from tests.system.supervised import Supervised

# Runs that end badly are many here, and nobody comes back for what their writers hold; who tests that says so.
os.environ.setdefault("CHECKPOINT_HOLD_S", "0")


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    """A run that is yet to be started; what it leaves behind is ended with the test."""
    bench = Supervised(tmp_path)
    yield bench
    bench.close()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with a bucket called `bucket`."""
    with closing(S3Server(tmp_path_factory.mktemp("s3"))) as server:
        server.make_bucket("bucket")
        yield server
