# SPDX-License-Identifier: Apache-2.0
"""Where a run stands: JSON with stable keys, plain lines, and a table on a terminal."""

from __future__ import annotations

import io
import json
import math

from rich.console import Console

from supervisor.controller import rendering, status_text
from supervisor.controller.api import LiveNumbers
from supervisor.core import events as e
from supervisor.core.api import Mode, Policy
from tests.supervisor.controller import made_up

KEYS = {
    "run",
    "at",
    "phase",
    "waiting_for",
    "phase_deadline",
    "attempt",
    "step",
    "resume_step",
    "loss",
    "tokens_per_s",
    "step_s",
    "hang_deadline_s",
    "checkpoint_stall_s",
    "pause",
    "last_checkpoint",
    "skipped",
    "rollbacks",
    "nodes",
    "excluded",
    "environment",
    "ettr",
    "mttr_s",
    "incidents",
    "interventions",
    "references",
    "open_incident",
    "proposal",
    "frozen",
    "attached",
    "outcome",
    "submitted_at",
    "controller",
    "folder",
}


def training() -> made_up.Training:
    run = made_up.Training()
    run.start(None)
    run.train(1, 120)
    return run


def rows(run: made_up.Training) -> dict[str, str]:
    return dict(status_text.status_rows(made_up.view(run)))


def test_the_keys_of_the_json_status_are_an_interface() -> None:
    assert set(status_text.status_object(made_up.view(training()))) == KEYS


def test_a_training_run_has_its_numbers_in_json() -> None:
    found = json.loads(json.dumps(status_text.status_object(made_up.view(training())), allow_nan=False))
    assert found["phase"] == "TRAINING"
    assert found["step"] == 120
    assert found["last_checkpoint"] == {"step": 100, "attempt": 1, "position": 101, "healthy": True}
    assert found["tokens_per_s"] == 40_960.0
    assert found["controller"] == "pid 7 on login"


def test_a_finished_run_is_valid_json_although_it_has_no_deadline_and_its_loss_is_nan() -> None:
    view = made_up.view(made_up.eventful(), LiveNumbers(loss=math.nan))
    found = json.loads(json.dumps(status_text.status_object(view), allow_nan=False))
    assert found["phase_deadline"] is None and found["loss"] is None
    assert found["outcome"] == {
        "reason": "completed",
        "text": "attempt 5 completed the run at step 1200",
        "exit_code": 0,
    }
    assert found["skipped"] == [[640, 839]]


def test_interventions_stand_beside_ettr_and_mttr_with_what_others_reached() -> None:
    found = rows(made_up.eventful())
    names = list(found)
    assert names.index("ETTR") + 1 == names.index("MTTR")
    assert found["interventions"].startswith("2 by people")
    assert "arXiv 2407.21783" in found["interventions"] and "arXiv 2403.07648" in found["interventions"]


def test_a_run_that_waits_for_a_person_says_what_it_would_do() -> None:
    run = made_up.Training(Policy(mode=Mode.ADVISE))
    run.start(None)
    run.train(1, 20)
    run.journal.hear(e.RankFailed(run.at, 1, 0, made_up.NODE, 1, run.at))
    found = rows(run)
    assert "`supervisor approve` does it" in found["proposal"]
    assert found["open_incident"] == "1 (exit): rank 0 on node-1 exited with 1"


def test_plain_lines_are_key_and_value_in_ascii() -> None:
    for line in status_text.plain_lines(status_text.status_rows(made_up.view(training()))):
        key, _, value = line.partition(": ")
        assert value and " " not in key
        assert line.isascii() and "\x1b" not in line


def test_on_a_terminal_the_status_is_a_coloured_table() -> None:
    stream = io.StringIO()
    shown = status_text.status_rows(made_up.view(training()))
    rendering.print_status(shown, Console(file=stream, force_terminal=True, width=100))
    assert "\x1b[32mTRAINING" in stream.getvalue()
    assert "last checkpoint" in stream.getvalue()
