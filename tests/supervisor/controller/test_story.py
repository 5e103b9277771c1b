# SPDX-License-Identifier: Apache-2.0
"""The journal told as a timeline: what happened, which evidence, which rule decided, and what was done."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from supervisor.controller import incident_files, rendering, story, story_text
from supervisor.controller.story import Story
from supervisor.core import events as e
from supervisor.core.api import OrderKind, Severity
from supervisor.errors import UsageError
from tests.supervisor.controller import made_up

COMMAND = ("torchrun", "--standalone", "train.py")
PROOFS = {1: ("rank-1/stderr.log:12: Killed",)}


def told(run: made_up.Training | None = None) -> Story:
    result = story.tell((run or made_up.eventful()).journal.records)
    assert result is not None
    return result


def text_of(tale: Story) -> str:
    return "\n".join(story_text.plain_lines(story_text.story_lines(tale, COMMAND, PROOFS)))


def test_a_journal_without_events_has_no_story() -> None:
    assert story.tell(()) is None
    assert story.tell(made_up.Journal().records) is None


def test_the_story_names_command_attempts_and_outcome() -> None:
    text = text_of(told())
    assert "command  torchrun --standalone train.py" in text
    assert "from step 500, without batches 640-839, to step 1200, ended after" in text
    assert "outcome  completed: attempt 5 completed the run at step 1200 (exit code 0)" in text


def test_an_incident_is_told_with_its_sign_cause_rule_evidence_answer_and_time() -> None:
    text = text_of(told())
    incident = text[text.index("incident 1,") : text.index("incident 2,")]
    assert "incident 1, exit of attempt 1 at step 260: NodeFailure" in incident
    assert "warning: incident 1: attempt 1 failed at step 260 (exit): rank 1 on node-1 exited with -9" in incident
    assert "cause  NodeFailure (infrastructure; decided by signature:killed, confidence 0.80)" in incident
    assert "evidence  rank-1/stderr.log:12: Killed" in incident
    assert "-> stop attempt 1" in incident
    assert "-> launch attempt 2 from step 200" in incident
    assert "recovery  2.9 s: detect 0.2 s, stop 0.3 s, diagnose 0.2 s" in incident


def test_a_hang_says_that_stacks_were_kept_before_the_stop() -> None:
    assert "-> keep stacks, then stop attempt 2" in text_of(told())


def test_a_spike_that_came_back_is_said_to_be_the_datas() -> None:
    text = text_of(told())
    assert "replaying the batches, to tell data from chance" in text
    assert "it is the data's: going back to step 500 and leaving out batches 640-839" in text


def test_a_persons_orders_stand_outside_the_incidents_and_are_counted() -> None:
    tale = told()
    assert [(order.order, order.who) for order in tale.orders] == [
        (OrderKind.FREEZE, "ann@login"),
        (OrderKind.THAW, "ann@login"),
    ]
    ordered = [entry for entry in tale.entries if "ann@login ordered" in entry.text]
    assert [entry.incident for entry in ordered] == [0, 0]
    assert "interventions  2 by people (Llama 3: 3 significant ones in 419 interruptions" in text_of(tale)


def test_entries_come_in_the_order_in_which_they_happened() -> None:
    times = [entry.at for entry in told().entries]
    assert times == sorted(times)


def test_an_incident_that_is_still_open_says_so() -> None:
    run = made_up.Training()
    run.start(None)
    run.train(1, 20)
    run.journal.hear(e.RankFailed(run.at, 1, 0, made_up.NODE, 1, run.at))
    tale = told(run)
    assert "recovery  still open: detect 0.0 s" in text_of(tale)
    assert "now  STOPPING" in text_of(tale)


def test_a_correction_of_a_person_is_shown_beside_the_diagnosis() -> None:
    run = made_up.eventful()
    before = run.journal.records[:-1]
    run.journal.records = before
    corrected = e.OrderGiven(run.at, OrderKind.CORRECT, "ann@login", incident=2, reason="NVLinkError")
    run.journal.last = None
    run.journal.records = []
    run.journal.hear(*[record.event for record in before if record.event is not None], corrected)
    tale = told(run)
    assert tale.corrections == {2: "NVLinkError"}
    assert "corrected  NVLinkError, says a person" in text_of(tale)


def test_a_single_incident_can_be_told_alone() -> None:
    text = text_of(story.only_incident(told(), 2))
    assert "incident 2," in text
    assert "incident 1," not in text
    assert "ordered freeze" not in text


def test_an_unknown_incident_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="has no incident 9; known: 1 to 4"):
        story.only_incident(told(), 9)


def test_the_json_story_has_every_incident_with_its_parts() -> None:
    found = json.loads(json.dumps(story_text.story_object(told(), COMMAND, PROOFS)))
    assert found["command"] == list(COMMAND)
    assert [each["reason"] for each in found["incidents"]] == ["NodeFailure", "SilentHang", "LossSpike", "LossSpike"]
    first = found["incidents"][0]
    assert first["decided_by"] == "signature:killed"
    assert first["evidence"] == ["rank-1/stderr.log:12: Killed"]
    assert sum(first["parts_s"].values()) == pytest.approx(first["recovery_s"])
    assert found["attempts"][4]["skipped"] == "640-839"
    assert found["outcome"]["exit_code"] == 0
    assert {entry["incident"] for entry in found["timeline"]} == {None, 1, 2, 3, 4}


def test_without_a_terminal_there_is_neither_colour_nor_anything_but_ascii() -> None:
    text = text_of(told())
    assert text.isascii() and "\x1b" not in text


def test_control_characters_of_a_log_line_do_not_reach_the_reader() -> None:
    lines = story_text.story_lines(told(), COMMAND, {1: ("\x1b[31mred\x1b[0m \x07bell",)})
    assert "evidence  red bell" in "\n".join(story_text.plain_lines(lines))


def test_on_a_terminal_grave_lines_are_coloured_and_long_ones_wrap_beside_their_label() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=60)
    lines = [story_text.Line("word " * 30, "cause", 1), story_text.Line("all is lost", "12:00", 0, Severity.URGENT)]
    rendering.print_story(lines, console)
    shown = stream.getvalue()
    assert "\x1b[1;31mall is lost" in shown
    assert len(shown.splitlines()) > 4


def test_proofs_come_from_the_incidents_folder(tmp_path: Path) -> None:
    kept = {"evidence": [{"file": "rank-0/stderr.log", "line_number": 3, "text": " Killed \n"}]}
    (tmp_path / "diagnosis.json").write_text(json.dumps(kept))
    (tmp_path / "stacks-rank-0.txt").write_text("")
    assert incident_files.proofs(tmp_path) == (
        "rank-0/stderr.log:3: Killed",
        f"{tmp_path}: stacks-rank-0.txt",
    )


def test_an_incident_without_a_folder_has_no_proofs(tmp_path: Path) -> None:
    assert incident_files.proofs(tmp_path / "0001") == ()
