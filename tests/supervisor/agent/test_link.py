# SPDX-License-Identifier: Apache-2.0
"""The controller is found by its file, and tries to reach it are spread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.agent.link import FIRST_PAUSE_S, LONGEST_PAUSE_S, ControllerAddress, LinkError, pause_s, read_address

GOOD = {"version": 1, "address": "[::1]:8443", "certificate_sha256": "AB:CD", "token": "t"}


def test_the_file_names_host_port_certificate_and_token(tmp_path: Path) -> None:
    (tmp_path / "controller.json").write_text(json.dumps(GOOD))
    assert read_address(tmp_path) == ControllerAddress("::1", 8443, "abcd", "t")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", json.dumps({**GOOD, "version": 2}), json.dumps({**GOOD, "address": "host"}), '{"version": 1}'],
)
def test_a_file_that_names_no_controller_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "controller.json").write_text(content)
    with pytest.raises(LinkError, match=r"controller\.json"):
        read_address(tmp_path)


def test_no_file_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="names no controller"):
        read_address(tmp_path)


@given(st.integers(1, 10**6), st.floats(0.0, 1.0))
def test_pauses_grow_to_their_limit(failures: int, jitter: float) -> None:
    assert FIRST_PAUSE_S / 2 <= pause_s(failures, jitter) <= LONGEST_PAUSE_S
    assert pause_s(failures + 1, jitter) >= pause_s(failures, jitter)
