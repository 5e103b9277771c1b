# SPDX-License-Identifier: Apache-2.0
"""Every row of the table is tested by its own examples, and stays within what RE2 can do."""

from __future__ import annotations

import re

import pytest

from supervisor.diagnosis.literals import required_literals
from supervisor.diagnosis.model import CATEGORY_OF_REASON, Action, Category
from supervisor.diagnosis.prefixes import strip
from supervisor.diagnosis.signatures import Signature, SignatureError, Trust, default_matcher, parse_signatures

ROWS = default_matcher().signatures
EXAMPLES = [pytest.param(row, line, id=f"{row.name}-{i}") for row in ROWS for i, line in enumerate(row.examples)]
NOT_IN_RE2 = re.compile(r"\(\?(?:=|!|<=|<!|\(|>|#)|\(\?P=|\\[1-9]|\\g<|[*+?}]\+")
PLANTED = """
[[signature]]
name = "disk"
pattern = 'disk full'
reason = "{reason}"
action = "fix_user"
trust = "local"
blames = "user"
explanation = "e"
suggestion = "s"
examples = ["disk full"]
"""


@pytest.mark.parametrize(("row", "line"), EXAMPLES)
def test_an_example_line_matches_its_own_row_first(row: Signature, line: str) -> None:
    found = default_matcher().match(strip(line).text)
    assert found is not None and found.name == row.name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_counter_example_does_not_match_its_row(row: Signature) -> None:
    found = [default_matcher().match(strip(line).text) for line in row.counter_examples]
    assert row.name not in {match.name for match in found if match is not None}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_pattern_keeps_to_the_subset_that_re2_knows(row: Signature) -> None:
    assert NOT_IN_RE2.search(row.pattern) is None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_only_infrastructure_may_isolate_a_node(row: Signature) -> None:
    isolates = row.action is Action.ISOLATE_NODE_AND_RESTART
    assert not isolates or CATEGORY_OF_REASON[row.reason] is Category.INFRASTRUCTURE
    assert not row.fatal or (isolates and row.trust is Trust.KERNEL)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_script_error_is_never_restarted(row: Signature) -> None:
    assert CATEGORY_OF_REASON[row.reason] is not Category.SCRIPT or row.action is Action.FIX_USER


@pytest.mark.parametrize("number", [48, 64, 79, 95, 119, 120, 140])
def test_fatal_xids_condemn_the_node_without_a_probe(number: int) -> None:
    row = default_matcher().match(f"NVRM: Xid (PCI:0000:3d:00): {number}, pid=1234, name=python, text")
    assert row is not None and row.fatal


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 74, 94, 109, 143, 154, 171, 999])
def test_other_xids_leave_the_node_a_suspect(number: int) -> None:
    row = default_matcher().match(f"NVRM: Xid (PCI:0000:3d:00): {number}, pid=1234, name=python, text")
    assert row is not None and not row.fatal


def test_a_row_with_an_unknown_reason_is_refused_by_name() -> None:
    with pytest.raises(SignatureError, match="'disk'"):
        parse_signatures(PLANTED.format(reason="DiskError"))


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(SignatureError, match="twice"):
        parse_signatures(PLANTED.format(reason="OSError") * 2)


def test_a_row_without_an_example_is_refused() -> None:
    with pytest.raises(SignatureError, match="example"):
        parse_signatures(PLANTED.format(reason="OSError").replace('["disk full"]', "[]"))


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        (r"Xid \(PCI:[^)]*\): 79,|fallen off the bus", ("xid (pci:", "fallen off the bus")),
        (r"(?i)Found NaN", ("found nan",)),
        (r"colou?rs are", ("rs are",)),
        (r"a(?:bcd|efg)h", ("bcd", "efg")),
        (r"(?:abcdef)?ghi", ("ghi",)),
        (r"[abc]+\d", ()),
        (r"a+bcd", ("bcd",)),
        (r"abc{2,3}defg", ("defg",)),
    ],
)
def test_required_literals_are_those_that_a_match_cannot_lack(pattern: str, literals: tuple[str, ...]) -> None:
    assert required_literals(pattern) == literals
