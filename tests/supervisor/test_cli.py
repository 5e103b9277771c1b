# SPDX-License-Identifier: Apache-2.0
"""The command line: wrong usage is one line with the next step, and looking at a run needs no controller."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor import cli, orders
from supervisor.controller.journal import Journal
from supervisor.controller.run_folder import RunFolder
from supervisor.controller.steps_file import HEADER
from supervisor.core.api import OrderKind
from supervisor.core.events import OrderGiven
from supervisor.errors import UsageError
from tests.supervisor.controller import made_up

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUPERVISOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def ended(home: Path) -> Path:
    """The folder of a run that has ended, as its controller leaves it."""
    folder = RunFolder(home / "runs" / "gpt")
    folder.make()
    run = made_up.eventful()
    journal = Journal(folder.journal)
    for record in run.journal.records:
        journal.append(record)
    journal.close()
    rows = [",".join("" if cell is None else str(cell) for cell in row) for row in run.rows]
    folder.steps.write_text("\n".join([HEADER, *rows]) + "\n")
    folder.write_description({"command": ["torchrun", "train.py"], "scheduler": "local"})
    return folder.path


def parsed(*words: str) -> OrderGiven:
    return orders.order_from(cli.build_parser().parse_args(words))


def test_help_lists_the_commands_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    for word in ("run ", "attach", "status", "story", "rollback", "130 stopped by the person", "143"):
        assert word in shown


@pytest.mark.parametrize("name", ["probe", "operator", "slurm", "trace", "rules", "daemon"])
def test_commands_that_do_not_exist_are_not_offered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([name])
    assert left.value.code == 2
    assert f"invalid choice: '{name}'" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys\nfrom supervisor import cli\n"
        "try:\n    cli.main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'pydantic', 'rich', 'torch', 'matplotlib', 'cryptography', 'supervisor.core'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", probe], check=False, cwd=PROJECT, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_run_without_a_command_shows_how_to_give_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--name", "gpt"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("supervisor: error: no command to run; give it behind --")
    assert "supervisor run -- torchrun" in error
    assert cli.main(["run", "--"]) == 2


def test_a_command_without_the_dashes_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["run", "torchrun", "train.py"])
    assert left.value.code == 2
    assert "the command to run comes behind --: supervisor run [options] -- COMMAND..." in capsys.readouterr().err


def test_a_command_behind_dashes_is_refused_where_none_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["status", "--", "train.py"])
    assert left.value.code == 2
    assert "status takes no command after --" in capsys.readouterr().err


def test_an_unknown_key_of_the_configuration_ends_with_2(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text("[policy]\nmod = 'act'\n")
    assert cli.main(["run", "-c", "run.toml", "--", sys.executable, "train.py"]) == 2
    error = capsys.readouterr().err
    assert error == "supervisor: error: run.toml: unknown key 'mod' in section [policy]; did you mean 'mode'?\n"


def test_a_folder_that_is_a_file_is_named_before_anything_starts(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("")
    Path("train.py").write_text("")
    assert cli.main(["run", "--folder", "taken", "--", sys.executable, "train.py"]) == 2
    error = capsys.readouterr().err
    assert "taken is a file; name another: --folder" in error
    assert not home.exists()


def test_several_things_that_are_wrong_are_all_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("")
    Path("checkpoint.py").write_text("")
    command = ["torchrun", "--max-restarts=3", "train.py"]
    assert cli.main(["run", "--", *command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("supervisor: error: nothing was started:\n")
    assert "--max-restarts" in error
    assert "checkpoint.py takes the place of our package 'checkpoint'" in error


def test_check_tells_good_findings_too_and_leaves_nothing_behind(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("")
    assert cli.main(["check", "--checkpoint", "saved", "--", sys.executable, "train.py"]) == 0
    shown = capsys.readouterr().out
    for word in ("configuration: run 'train-", "versions: ", "run folder ", "checkpoint folder ", "scheduler local"):
        assert word in shown
    assert not home.exists() and not Path("saved").exists()


def test_check_ends_with_2_when_something_is_wrong(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--scheduler", "nonsense", "--", "no-such-program"]) == 2
    shown = capsys.readouterr().out
    assert "error   there is no program 'no-such-program'" in shown
    assert "error   scheduler nonsense" in shown


def test_status_of_an_ended_run_is_told_from_its_journal(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "gpt"]) == 0
    shown = capsys.readouterr().out
    assert "phase: SUCCEEDED\n" in shown and "controller: none\n" in shown
    assert cli.main(["status", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 1200


def test_the_story_is_told_as_text_and_as_json(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["story", "gpt"]) == 0
    assert "incident 4, loss spike of attempt 4 at step 640" in capsys.readouterr().out
    assert cli.main(["story", str(ended), "--incident", "2", "--format", "json"]) == 0
    assert [each["incident"] for each in json.loads(capsys.readouterr().out)["incidents"]] == [2]
    assert cli.main(["incident", "1"]) == 0
    assert "incident 1, exit" in capsys.readouterr().out


def test_the_plot_shows_a_line_of_text_and_writes_a_picture(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", "gpt", "-o", "loss.png"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("gpt: loss 4.5") and shown.isascii()
    assert shown.endswith("wrote loss.png\n")
    assert Path("loss.png").stat().st_size > 10_000


def test_without_matplotlib_the_line_of_text_is_shown_and_the_extra_named(
    ended: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["plot", "gpt", "-o", "loss.png"]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("gpt: loss 4.5")
    assert "pip install 'pretraining-supervisor[plot]'" in shown.err


def test_an_order_to_a_run_that_is_over_says_so(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pause", "gpt"]) == 2
    assert capsys.readouterr().err.startswith("supervisor: error: run gpt is over, so there is nothing to pause")


def test_an_unknown_run_is_an_error_that_lists_the_known_ones(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "gtp"]) == 2
    error = capsys.readouterr().err
    assert "there is no run 'gtp'" in error and "did you mean 'gpt'? Known are gpt" in error


def test_without_any_run_the_error_says_how_to_start_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status"]) == 2
    assert "start one with `supervisor run -- COMMAND`" in capsys.readouterr().err


def test_nodes_that_are_held_are_listed(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["nodes"]) == 0
    assert capsys.readouterr().out == "no node is held\n"
    assert cli.main(["uncordon", "node-9"]) == 2
    assert "node-9 is not held" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("pretraining-supervisor ")


def test_diagnose_reads_the_given_logs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rank.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert cli.main(["diagnose", "--format", "json", "rank.log"]) == 0
    assert json.loads(capsys.readouterr().out)["action"] == "fix_user"


@pytest.mark.parametrize("span", ["9-3", "5", "a-b", "-3-5", "3-", ""])
def test_a_bad_range_of_batches_is_an_error_that_shows_a_good_one(span: str) -> None:
    with pytest.raises(UsageError, match=r"expected FROM-TO .* as in 1200-1399"):
        orders.batch_range(span)


def test_a_range_of_batches_becomes_an_order() -> None:
    order = parsed("skip", "12-99", "gpt", "--why", "odd text")
    assert (order.order, order.first, order.last, order.why) == (OrderKind.SKIP, 12, 99, "odd text")
    assert "@" in order.who


def test_a_rollback_and_a_replacement_carry_step_and_node() -> None:
    assert parsed("rollback", "--to", "300").step == 300
    assert parsed("replace", "node-3").node == "node-3"
    with pytest.raises(UsageError, match="a step is 0 or more"):
        parsed("rollback", "--to", "-1")


@pytest.mark.parametrize("name", ["pause", "resume", "stop", "approve", "freeze", "thaw"])
def test_the_plain_orders_carry_their_kind(name: str) -> None:
    assert parsed(name).order is OrderKind(name)


def test_a_correction_of_a_run_that_has_ended_is_kept_and_shown(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["incident", "2", str(ended), "--reason", "NVLinkError", "--why", "nvidia-smi says so"]) == 0
    assert capsys.readouterr().out == "incident 2 is recorded as NVLinkError\n"
    kept = json.loads((ended / "incidents" / "0002" / "correction.json").read_text())
    assert (kept["incident"], kept["reason"], kept["why"]) == (2, "NVLinkError", "nvidia-smi says so")
    for words in (["incident", "2", str(ended)], ["story", str(ended)]):
        assert cli.main(words) == 0
        assert "corrected  NVLinkError, says a person" in capsys.readouterr().out
    assert cli.main(["incident", "2", str(ended), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["incidents"][0]["corrected_reason"] == "NVLinkError"


def test_a_correction_of_an_incident_that_never_was_is_refused(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["incident", "99", str(ended), "--reason", "NVLinkError"]) == 2
    assert "has no incident 99; known: 1 to" in capsys.readouterr().err
    assert not (ended / "incidents" / "0099").exists()


def test_a_correction_needs_a_reason_that_is_known() -> None:
    arguments = cli.build_parser().parse_args(["incident", "3", "--reason", "NVLinkError"])
    order = orders.correction(arguments)
    assert (order.order, order.incident, order.reason) == (OrderKind.CORRECT, 3, "NVLinkError")
    arguments = cli.build_parser().parse_args(["incident", "3", "--reason", "NVLink"])
    with pytest.raises(UsageError, match="did you mean 'NVLinkError'"):
        orders.correction(arguments)


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "--help"], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert reader.stdout is not None and reader.stderr is not None
    reader.stdout.close()
    errors = reader.stderr.read()
    reader.stderr.close()
    reader.wait(60)
    assert b"Traceback" not in errors
