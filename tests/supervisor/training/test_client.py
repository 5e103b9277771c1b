# SPDX-License-Identifier: Apache-2.0
"""A script's calls reach the agent when supervised, change nothing when not, and skip what was ordered either way."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.training import Run, supervise
from supervisor.training.control import ControlPage
from supervisor.training.records import Kind, Record
from supervisor.training.ring import RingReader


class Supervised:
    """A folder as the agent prepares it, and the agent's ends of ring and control page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page = ControlPage.create(folder / "control")
        self.environment = {
            "SUPERVISOR_RANK_FOLDER": str(folder),
            "SUPERVISOR_RUN": "gpt",
            "SUPERVISOR_ATTEMPT": "4",
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
        }
        self.runs: list[Run] = []

    def start(self, **more: str) -> Run:
        run = supervise({**self.environment, **more})
        self.runs.append(run)
        return run

    def reader(self) -> RingReader:
        return RingReader(self.folder / "rank-1.ring")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path)
    yield supervised
    for run in supervised.runs:
        run.close()


def kinds(records: list[Record]) -> list[Kind]:
    return [record.kind for record in records]


def test_without_a_supervisor_everything_works_and_nothing_is_told(tmp_path: Path) -> None:
    hook = sys.excepthook
    run = supervise({})
    run.role(pipeline=0)
    seen = []
    for step, batch in run.batches([10, 11, 12], start=1):
        with run.phase("evaluation"):
            run.report(step, loss=1.0, grad_norm=0.5, tokens=8)
        seen.append((step, batch))
    assert seen == [(2, 11), (3, 12)]
    assert not run.supervised and not run.should_stop and run.loss_healthy is None and run.position == 3
    run.close()
    assert sys.excepthook is hook and list(tmp_path.iterdir()) == []


def test_skipping_needs_no_supervisor() -> None:
    run = supervise({"SUPERVISOR_SKIP": "[[1, 2]]"})
    assert list(run.batches(range(6))) == [(1, 0), (2, 3), (3, 4), (4, 5)]
    assert run.skipped == ((1, 2),)


def test_the_ring_says_which_rank_of_which_attempt_it_is(agent: Supervised) -> None:
    run = agent.start()
    identity = agent.reader().identity
    assert run.supervised and run.attempt == 4
    assert (identity.rank, identity.local_rank, identity.world_size, identity.attempt) == (1, 1, 2, 4)


def test_steps_phases_and_the_end_are_told_in_order(agent: Supervised) -> None:
    run = agent.start(SUPERVISOR_SKIP="[[5, 6]]")
    reader = agent.reader()
    for step, _ in run.batches(range(8), start=4):
        run.report(step, loss=float(step), grad_norm=math.nan, tokens=32)
        with run.phase("evaluation"):
            assert reader.activity().phase == "evaluation"
        assert reader.activity().phase is None
    assert reader.activity().step == 6
    run.close()
    records = reader.poll()
    one_step = [Kind.STEP, Kind.PHASE_ENTERED, Kind.PHASE_LEFT]
    assert kinds(records) == [Kind.RESTORED, *one_step, *one_step, Kind.FINISHED]
    assert (records[0].step, records[0].position) == (4, 4)
    steps = [record for record in records if record.kind is Kind.STEP]
    assert [(record.step, record.position, record.loss, record.tokens) for record in steps] == [
        (5, 4, 5.0, 32),
        (6, 7, 6.0, 32),
    ]
    assert steps[0].times.evaluation == 0.0 < steps[1].times.evaluation
    assert reader.phase_name(records[2].phase) == "evaluation"


def test_during_a_step_the_position_is_that_of_the_next_one(agent: Supervised) -> None:
    run = agent.start(SUPERVISOR_SKIP="[[1, 3]]")
    loop = run.batches(range(9))
    assert run.position == 0
    assert next(loop) == (1, 0) and run.position == 4
    assert run.data_position.state_dict() == {"position": 4, "skipped": "[[1, 3]]"}


def test_a_resumed_run_goes_on_with_the_next_batch(agent: Supervised) -> None:
    first = agent.start()
    loop = first.batches(range(20))
    assert [next(loop) for _ in range(5)][-1] == (5, 4)
    saved = first.data_position.state_dict()
    second = agent.start(SUPERVISOR_SKIP="[[3, 7]]")
    second.data_position.load_state_dict(saved)
    assert next(second.batches(range(20), start=5)) == (6, 8)
    assert second.skipped == ((5, 7),)


def test_a_loader_that_is_read_through_does_so_in_a_known_pause(agent: Supervised) -> None:
    run = agent.start(SUPERVISOR_SKIP="[[4, 5]]")
    reader = agent.reader()
    phases: list[str | None] = []

    def loader() -> Iterator[int]:
        for index in range(8):
            phases.append(reader.activity().phase)
            yield index

    assert list(run.batches(loader(), start=2)) == [(3, 2), (4, 3), (5, 6), (6, 7)]
    forward = "fast-forward"
    assert phases == [forward, forward, forward, None, forward, forward, forward, None]


def test_a_stop_is_due_after_the_step_that_the_agent_named(agent: Supervised) -> None:
    run = agent.start()
    agent.page.request_stop(3)
    done = []
    for step, _ in run.batches(range(100)):
        done.append(step)
        if run.should_stop:
            break
    assert done == [1, 2, 3]


def test_a_script_with_its_own_loop_can_stop_too(agent: Supervised) -> None:
    run = agent.start()
    agent.page.request_stop(2)
    due = []
    for step in (1, 2):
        run.report(step)
        due.append(run.should_stop)
    assert due == [False, True]
    assert agent.reader().poll()[0].position is None


def test_the_loss_judgement_is_passed_on(agent: Supervised) -> None:
    run = agent.start()
    agent.page.set_loss_health(False)
    assert run.loss_healthy is False


def test_the_role_is_told(agent: Supervised) -> None:
    run = agent.start()
    run.role(pipeline=0, tensor=3)
    assert agent.reader().role == "pipeline=0,tensor=3"


def test_a_phase_that_raises_is_left(agent: Supervised) -> None:
    run = agent.start()
    with pytest.raises(KeyError), run.phase("evaluation"):
        raise KeyError("metric")
    assert agent.reader().activity().phase is None


def test_behind_the_loop_the_rank_is_on_its_way_out_until_another_loop_begins(agent: Supervised) -> None:
    run, reader = agent.start(), agent.reader()
    for _ in run.batches(["a", "b"]):
        assert reader.activity().phase is None
    assert reader.activity().phase == "leaving"
    with run.phase("evaluation"):
        assert reader.activity().phase == "evaluation"
    assert reader.activity().phase == "leaving"

    for _ in run.batches(["a", "b"]):
        assert reader.activity().phase is None
        break
    assert reader.activity().phase == "leaving"


def test_a_missing_folder_leaves_training_unsupervised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = supervise({"SUPERVISOR_RANK_FOLDER": str(tmp_path / "absent")})
    assert not run.supervised and "training goes on unsupervised" in caplog.text


def test_a_missing_control_page_costs_the_clean_stop_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = supervise({"SUPERVISOR_RANK_FOLDER": str(tmp_path)})
    assert run.supervised and not run.should_stop and "cannot ask this rank to stop" in caplog.text
    run.close()


@pytest.mark.parametrize(
    ("name", "value"), [("SUPERVISOR_SKIP", "[[9, 2]]"), ("SUPERVISOR_ATTEMPT", "x"), ("RANK", "one")]
)
def test_a_variable_without_meaning_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        supervise({name: value})


def ended(agent: Supervised, script: str) -> tuple[int, str, list[Record]]:
    """Run a script that is supervised; return its exit code, its stderr and what it told."""
    done = subprocess.run(
        [sys.executable, "-c", "from supervisor.training import supervise\nrun = supervise()\n" + script],
        env={**os.environ, **agent.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr, agent.reader().poll()


def test_an_interpreter_that_ends_in_order_says_so(agent: Supervised) -> None:
    code, _, records = ended(agent, "run.report(1, loss=0.5)")
    assert code == 0 and kinds(records) == [Kind.STEP, Kind.FINISHED]


def test_an_uncaught_exception_is_told_and_printed_as_ever(agent: Supervised) -> None:
    code, stderr, records = ended(agent, "raise FileNotFoundError('shard-17')")
    assert code == 1 and "FileNotFoundError: shard-17" in stderr
    assert kinds(records) == [Kind.EXCEPTION] and records[0].text == "FileNotFoundError"


def test_a_hook_of_the_script_still_runs_after_ours(agent: Supervised) -> None:
    script = """
import sys
before = sys.excepthook
sys.excepthook = lambda *error: (print('mine', file=sys.stderr), before(*error))
1 / 0
"""
    _, stderr, records = ended(agent, script)
    assert "mine" in stderr and records[0].text == "ZeroDivisionError"


def test_a_forked_child_tells_nothing(agent: Supervised) -> None:
    script = """
import os
if (child := os.fork()) == 0:
    run.report(99)
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
run.report(1)
"""
    code, stderr, records = ended(agent, script)
    assert code == 0, stderr
    assert [(record.kind, record.step) for record in records] == [(Kind.STEP, 1), (Kind.FINISHED, 1)]


def test_a_fatal_signal_leaves_the_stack_on_stderr(agent: Supervised) -> None:
    code, stderr, records = ended(agent, "import faulthandler\nfaulthandler._sigsegv()")
    assert code < 0 and "Segmentation fault" in stderr and records == []


def test_the_client_needs_nothing_but_the_standard_library(agent: Supervised) -> None:
    script = """
import sys
roots = {name.partition('.')[0] for name in sys.modules}
extra = {name for name in roots if name not in sys.stdlib_module_names and not name.startswith(('_', 'sitecustomize'))}
assert extra == {'supervisor'}, extra
ours = {name for name in sys.modules if name.startswith('supervisor.')}
assert all(name.startswith('supervisor.training') for name in ours), ours
"""
    code, stderr, _ = ended(agent, script)
    assert code == 0, stderr
