# SPDX-License-Identifier: Apache-2.0
"""Prefixes of launchers and time stamps come off in any stack, and what they say is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.prefixes import strip


@pytest.mark.parametrize(
    ("raw", "text", "rank"),
    [
        ("[rank7]: ValueError: boom", "ValueError: boom", 7),
        (" 7: [rank80]: KeyError: 'x'", "KeyError: 'x'", 80),
        ("[default3]:terminate called", "terminate called", None),
        ("0: plain", "plain", 0),
        ("10.0.0.56: die", "die", None),
        ("(RayWorkerWrapper pid=221, ip=10.0.0.7) TypeError: x", "TypeError: x", None),
        ("2024-05-01 10:11:12,123 [ERROR] KeyError: 'x'", "KeyError: 'x'", None),
        ("KeyError: 'x'", "KeyError: 'x'", None),
        ("python3: can't open file 'x'", "python3: can't open file 'x'", None),
        ("[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog", "[Rank 0] Watchdog", 1),
    ],
)
def test_stacked_prefixes_come_off(raw: str, text: str, rank: int | None) -> None:
    line = strip(raw)
    assert (line.text, line.rank) == (text, rank)


@pytest.mark.parametrize(
    ("raw", "node"),
    [
        ("Feb 14 05:03:41 node-017 kernel: NVRM: Xid", "node-017"),
        ("node-003:3063025:3066048 [0] misc/socket.cc:49 NCCL WARN x", "node-003"),
        ("node-001: FileNotFoundError: x", "node-001"),
        ("10.0.0.56: die", "10.0.0.56"),
    ],
)
def test_the_node_is_the_one_that_prints_the_line(raw: str, node: str) -> None:
    assert strip(raw).node == node


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2024-05-01 10:11:12 x", "2024-05-01T10:11:12.5Z x"),
        ("[rank2]:[E626 05:06:30.929096625 P.cpp:632] x", "[rank7]:[E626 05:14:36.393067540 P.cpp:1743] x"),
        ("[Fri Mar  3 04:27:08 2023] x", "Mar  3 04:27:09 host kernel: x"),
    ],
)
def test_time_stamps_of_all_styles_lie_on_one_clock(earlier: str, later: str) -> None:
    first, second = strip(earlier).at, strip(later).at
    assert first is not None and second is not None and first < second


@given(st.text(max_size=300))
@settings(max_examples=150)
def test_any_text_is_stripped_without_an_error(raw: str) -> None:
    assert strip(raw).text in raw.replace("\x1b", "\x1b") or "\x1b" in raw
