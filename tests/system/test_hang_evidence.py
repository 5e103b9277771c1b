# SPDX-License-Identifier: Apache-2.0
"""What shows why ranks hang is kept before they are stopped, and it names the rank that the others waited for."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.api import events
from tests.system.supervised import SCRIPTS, Supervised, torchrun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SCRIPT = SCRIPTS / "hanging.py"
QUICK = """
[detection]
floor_s = 5
warmup_s = 5
"""


@pytest.fixture
def quick(supervised: Supervised) -> Supervised:
    """Hangs are noticed after seconds, right from the start."""
    supervised.configure(QUICK)
    return supervised


def incident(supervised: Supervised) -> Path:
    return supervised.folder / "incidents" / "0001"


def diagnosis(supervised: Supervised) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((incident(supervised) / "diagnosis.json").read_text())
    return value


def text(supervised: Supervised, name: str) -> str:
    return (incident(supervised) / name).read_text()


def assert_kept_while_alive(supervised: Supervised) -> None:
    """Both ranks' processes were there when they were looked at, nobody was waited for, and the stop came after."""
    stopped_at = supervised.events(events.AttemptEnded)[0].at
    for rank in (0, 1):
        assert "State:" in text(supervised, f"process-rank-{rank}.txt")
    for path in incident(supervised).glob("*-rank-*"):
        assert path.stat().st_mtime <= stopped_at
    assert "was not there within" not in supervised.output
    [found] = supervised.events(events.HangFound)
    assert found.step is not None


def test_a_frozen_rank_is_named_and_not_asked(quick: Supervised) -> None:
    quick.start(*torchrun(SCRIPT, "run"))
    quick.wait_for_step(30)
    quick.rank(1).send(signal.SIGSTOP)

    assert quick.end() == 0, quick.output

    assert_kept_while_alive(quick)
    assert "T (stopped)" in text(quick, "process-rank-1.txt")
    assert "all_reduce" in text(quick, "stacks-rank-0.txt")
    assert '"entries"' in text(quick, "flight-recorder-rank-0.json")
    found = diagnosis(quick)
    assert (found["reason"], found["rank"], found["action"]) == ("ExternalStop", 1, "restart_same")
    assert found["evidence"][0]["file"].endswith("process-rank-1.txt")


def test_a_rank_in_an_endless_loop_is_named_with_its_place(quick: Supervised) -> None:
    assert quick.run(*torchrun(SCRIPT, "loop")) == 0, quick.output

    assert_kept_while_alive(quick)
    assert "spin (hanging.py" in text(quick, "stacks-rank-1.txt")
    assert "spin" in text(quick, "python-stacks-rank-1.txt")
    found = diagnosis(quick)
    assert (found["reason"], found["rank"], found["action"]) == ("SilentHang", 1, "restart_same")
    assert "last enqueued is collective 29" in found["explanation"]
    assert "It stands in spin (hanging.py" in found["explanation"]


def test_a_rank_that_skips_a_collective_is_the_scripts_mistake(quick: Supervised) -> None:
    assert quick.run(*torchrun(SCRIPT, "skip")) == 3, quick.output

    assert_kept_while_alive(quick)
    found = diagnosis(quick)
    assert (found["reason"], found["action"]) == ("RuntimeError", "fix_user")
    assert "rank 0 all_reduce[[8]], rank 1 barrier" in found["explanation"]
    assert len(quick.launches()) == 1
