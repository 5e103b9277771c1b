# SPDX-License-Identifier: Apache-2.0
"""Schedulers are opened by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedulers import registry
from schedulers.api import SchedulerError
from schedulers.local import LocalScheduler


def test_the_local_scheduler_is_opened_by_its_name(tmp_path: Path) -> None:
    assert isinstance(registry.open_scheduler("local", tmp_path), LocalScheduler)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match="there is no scheduler 'slurmm'; known are local"):
        registry.open_scheduler("slurmm", tmp_path)


def test_a_backend_whose_package_is_missing_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.SCHEDULERS, "elsewhere", "a_package_that_is_not_there:Scheduler")
    with pytest.raises(SchedulerError, match="a_package_that_is_not_there"):
        registry.open_scheduler("elsewhere", tmp_path)
