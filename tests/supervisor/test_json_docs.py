# SPDX-License-Identifier: Apache-2.0
"""Every key that `--format json` prints is documented in docs/json.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.controller import status_text, story, story_text
from tests.supervisor.controller import made_up

DOCUMENTED = set(re.findall(r"`([a-z_]+)`", (Path(__file__).parents[2] / "docs" / "json.md").read_text()))
FREE = {"environment", "references", "parts_s"}
"""Their keys are names of variables, subjects and parts."""


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            if key not in FREE:
                yield from keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)


@pytest.fixture(scope="module")
def run() -> made_up.Training:
    return made_up.eventful()


def test_every_key_of_the_status_is_documented(run: made_up.Training) -> None:
    assert set(keys(status_text.status_object(made_up.view(run)))) - DOCUMENTED == set()


def test_every_key_of_the_story_is_documented(run: made_up.Training) -> None:
    told = story.tell(run.journal.records)
    assert told is not None
    assert set(keys(story_text.story_object(told, ("train.py",), {}))) - DOCUMENTED == set()
