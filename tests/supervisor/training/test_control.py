# SPDX-License-Identifier: Apache-2.0
"""What the agent writes on the control page, ranks read at once, and nothing else passes for such a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.training.control import ControlError, ControlPage, ControlView


def test_a_new_page_asks_for_nothing(tmp_path: Path) -> None:
    ControlPage.create(tmp_path / "control")
    view = ControlView(tmp_path / "control")
    assert view.stop_at_step is None and view.loss_healthy is None and view.generation == 0
    assert not view.is_stop_due(10**12)


def test_a_stop_is_due_from_the_named_step_on(tmp_path: Path) -> None:
    page = ControlPage.create(tmp_path / "control")
    view = ControlView(tmp_path / "control")
    page.request_stop(120)
    assert view.stop_at_step == 120
    assert [view.is_stop_due(step) for step in (118, 119, 120, 121)] == [False, False, True, True]


@pytest.mark.parametrize("judgement", [True, False, None])
def test_the_loss_judgement_reaches_the_rank(tmp_path: Path, judgement: bool | None) -> None:
    page = ControlPage.create(tmp_path / "control")
    view = ControlView(tmp_path / "control")
    page.set_loss_health(judgement)
    assert view.loss_healthy is judgement and view.generation == 1


def test_a_restarted_agent_takes_over_the_page_that_ranks_have_mapped(tmp_path: Path) -> None:
    ControlPage.create(tmp_path / "control").close()
    view = ControlView(tmp_path / "control")
    ControlPage(tmp_path / "control").request_stop(5)
    assert view.stop_at_step == 5


def test_the_page_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    ControlPage.create(tmp_path / "control")
    assert (tmp_path / "control").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 4096])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "control").write_bytes(content)
    with pytest.raises(ControlError, match="control page"):
        ControlView(tmp_path / "control")


def test_a_negative_stop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be -1"):
        ControlPage.create(tmp_path / "control").request_stop(-1)
