# SPDX-License-Identifier: Apache-2.0
"""A real agent between a talking controller and real launchers: what it notices, stops, survives and passes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.agent import api, processes
from tests.system.stub_controller import DEADLINE_S, StubController

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "agent_programs"
REPOSITORY = Path(__file__).parents[2]
AGENT = (sys.executable, "-m", "supervisor.agent")
TORCHRUN = Path(sys.executable).with_name("torchrun")


class Bench:
    """One run folder, its controller, and the agent that works for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.controller = StubController(folder)
        self.agents: list[subprocess.Popen[bytes]] = []

    def start_agent(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "agent.log").open("ab") as log:
            agent = subprocess.Popen(
                [*AGENT, "--run-folder", self.folder, "--run", "bench", "--node", "n0", *arguments],
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.agents.append(agent)
        return agent

    def kill_agent(self) -> None:
        self.agents[-1].kill()
        self.agents[-1].wait()

    def spec(self, attempt: int, command: tuple[str, ...], *, warm: str = "off") -> api.LaunchSpec:
        return api.LaunchSpec(
            command=command,
            working_folder=str(PROGRAMS),
            environment=(("PYTHONPATH", str(REPOSITORY)),),
            attempt_folder=str(self.folder / f"attempt-{attempt}"),
            warm=warm,
            report_interval_s=0.2,
        )

    def start(self, attempt: int, command: tuple[str, ...], *, warm: str = "off") -> None:
        self.controller.order(api.StartAttempt(attempt, self.spec(attempt, command, warm=warm)))

    def stop(self, attempt: int, *, grace_s: float = 5.0, evidence: bool = False) -> api.AttemptEnded:
        order = api.StopAttempt(attempt, grace_s, evidence, 1, str(self.folder / "evidence"))
        self.controller.order(order)
        return self.ended(attempt)

    def began(self, attempt: int) -> api.AttemptBegan:
        return self.controller.wait_for(api.AttemptBegan, lambda report: report.attempt == attempt)

    def ended(self, attempt: int) -> api.AttemptEnded:
        return self.controller.wait_for(api.AttemptEnded, lambda report: report.attempt == attempt)

    def stepped(self, attempt: int, step: int = 1) -> api.StepsSeen:
        return self.controller.wait_for(
            api.StepsSeen, lambda report: report.attempt == attempt and report.rows[-1].step >= step
        )

    def ranks(self, attempt: int, count: int = 2, *, instrumented: bool = True) -> tuple[api.RankStatus, ...]:
        def has_all(report: api.RanksPolled) -> bool:
            seen = [rank for rank in report.ranks if rank.alive and rank.instrumented is instrumented]
            return report.attempt == attempt and len(seen) == count

        return self.controller.wait_for(api.RanksPolled, has_all).ranks

    def output(self, attempt: int, rank: int, stream: str = "stdout") -> str:
        return (self.folder / f"attempt-{attempt}" / f"rank-{rank}" / f"{stream}.log").read_text()

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
                agent.wait(60)
        self.controller.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.controller.open()
    bench.start_agent()
    yield bench
    bench.close()


def torchrun(*arguments: str) -> tuple[str, ...]:
    return (str(TORCHRUN), "--standalone", "--nproc-per-node", "2", "--monitor-interval", "1", "train.py", *arguments)


def small_ranks(way: str) -> tuple[str, ...]:
    return (sys.executable, "launcher.py", "2", "rank.py", way)


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < until, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    found = processes.stat(pid)
    return found is None or found.is_gone


def test_a_killed_rank_of_torchrun_is_told_with_its_signal_before_the_attempt_is_stopped(bench: Bench) -> None:
    bench.start(1, torchrun("100000"))
    first = bench.stepped(1)
    assert first.source == "client" and first.rows[0].step == 1 and first.rows[0].tokens == 64
    ranks = bench.ranks(1)
    assert [(rank.rank, rank.local_rank, rank.instrumented) for rank in ranks] == [(0, 0, True), (1, 1, True)]
    os.kill(ranks[1].pid, signal.SIGKILL)
    exited = bench.controller.wait_for(api.RankExited, lambda report: report.exit.rank == 1)
    assert (exited.exit.pid, exited.exit.by_us, exited.exit.finished) == (ranks[1].pid, False, False)
    ended = bench.stop(1)
    assert {rank.rank: rank.exit_code for rank in ended.ranks}[1] == -signal.SIGKILL
    assert all(is_gone(rank.pid) for rank in ranks)


def test_the_last_step_is_told_before_the_exit_of_its_rank(bench: Bench) -> None:
    bench.start(1, (sys.executable, "launcher.py", "1", "rank.py", "exits"))
    bench.ended(1)
    told = [report for _, report in bench.controller.reports]
    exited = next(index for index, report in enumerate(told) if isinstance(report, api.RankExited))
    before = [row.step for report in told[:exited] if isinstance(report, api.StepsSeen) for row in report.rows]
    assert before[-1] == 50


def test_stacks_of_a_hang_are_kept_before_it_is_stopped(bench: Bench) -> None:
    bench.start(1, torchrun("100000", "stuck"))
    bench.stepped(1, 2)
    ranks = bench.ranks(1)
    os.kill(ranks[0].pid, signal.SIGSTOP)
    ended = bench.stop(1, evidence=True)
    kept = bench.controller.wait_for(api.EvidenceKept)
    texts = {Path(name).name: Path(name).read_text() for name in kept.files}
    assert "time.sleep(3600)" in texts["python-stacks-rank-1.txt"] or "train.py" in texts["python-stacks-rank-1.txt"]
    assert "main (train.py" in texts["stacks-rank-1.txt"]
    assert '"entries"' in texts["flight-recorder-rank-1.json"]
    assert re.search(r"State:\s+T", texts["process-rank-0.txt"])
    assert any("rank 0" in note and "is stopped" in note for note in kept.notes)
    assert {rank.rank: rank.exit_code for rank in ended.ranks}[0] == -signal.SIGKILL
    assert ended.by_us


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(bench: Bench) -> None:
    bench.start(1, small_ranks("stubborn"))
    ranks = bench.ranks(1)
    bench.stepped(1)
    ended = bench.stop(1, grace_s=0.5)
    assert [(rank.exit_code, rank.by_us) for rank in ended.ranks] == [(-signal.SIGKILL, True)] * 2
    assert all(is_gone(rank.pid) for rank in ranks) and is_gone(bench.began(1).launcher_pid)


def test_a_rank_that_we_killed_is_told_so_although_its_launcher_waited_for_it_first(bench: Bench) -> None:
    bench.start(1, ("env", "EAGER=1", *small_ranks("stubborn")))
    bench.ranks(1)
    bench.stepped(1)
    ended = bench.stop(1, grace_s=0.5)
    assert [(rank.exit_code, rank.by_us) for rank in ended.ranks] == [(-signal.SIGKILL, True)] * 2


def test_an_agent_started_anew_adopts_the_running_attempt_and_starts_none(bench: Bench) -> None:
    bench.start(1, torchrun("100000"))
    bench.stepped(1)
    before = bench.ranks(1)
    bench.kill_agent()
    bench.controller.reports.clear()
    bench.start_agent()
    assert bench.began(1).launcher_pid != 0
    assert {rank.pid for rank in bench.ranks(1)} == {rank.pid for rank in before}
    os.kill(before[0].pid, signal.SIGKILL)
    assert bench.controller.wait_for(api.RankExited).exit.rank == 0
    assert bench.stop(1).by_us
    assert all(is_gone(rank.pid) for rank in before)


def test_an_attempt_that_ended_while_no_agent_was_there_is_told_with_its_exit_code(bench: Bench) -> None:
    bench.start(1, ("/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 7"))
    launcher = bench.began(1).launcher_pid
    bench.kill_agent()
    go = PROGRAMS / "go"
    try:
        go.touch()
        wait_until(lambda: is_gone(launcher), "the command has ended")
    finally:
        go.unlink()
    bench.start_agent()
    ended = bench.ended(1)
    assert ended.exit_code == 7 and not ended.by_us


def test_training_goes_on_without_a_controller_and_is_told_when_one_is_back(bench: Bench) -> None:
    bench.start(1, small_ranks("client"))
    known = bench.stepped(1).rows[-1].step
    bench.controller.close()
    pids = [rank.pid for rank in bench.ranks(1)]
    wait_until(lambda: Path(f"/proc/{pids[0]}").exists(), "the ranks run")
    bench.controller.forget_orders()
    os.kill(pids[1], signal.SIGKILL)
    bench.controller.open()
    assert bench.controller.wait_for(api.RankExited).exit.exit_code == -signal.SIGKILL
    bench.ended(1)
    seen = [row.step for report in bench.controller.all_of(api.StepsSeen) for row in report.rows]
    assert seen == list(range(1, len(seen) + 1)) and len(seen) > known


def test_a_controller_with_another_certificate_never_sees_the_token(bench: Bench) -> None:
    bench.controller.close()
    bench.controller.open(digest="0" * 64)
    log = bench.folder / "agent.log"
    wait_until(lambda: "shows another certificate" in log.read_text(), "the agent refuses the certificate")
    assert bench.controller.refused == 0
    batches = len(bench.controller.batches)
    bench.controller.close()
    bench.controller.open()
    wait_until(lambda: len(bench.controller.batches) > batches, "the agent is back")


def test_ranks_that_are_asked_to_finish_stop_at_the_same_step(bench: Bench) -> None:
    bench.start(1, small_ranks("client"))
    bench.stepped(1, 5)
    bench.ranks(1)
    bench.controller.order(api.FinishAttempt(1, grace_s=60.0))
    ended = bench.ended(1)
    assert ended.exit_code == 0 and [rank.exit_code for rank in ended.ranks] == [0, 0]
    assert all(rank.finished and not rank.by_us for rank in ended.ranks)
    stops = re.findall(r"stopped at (\d+)", (bench.folder / "attempt-1" / "launcher.out").read_text())
    assert len(stops) == 2 and len(set(stops)) == 1


def test_ranks_that_do_not_finish_in_time_are_stopped(bench: Bench) -> None:
    bench.start(1, small_ranks("client"))
    bench.stepped(1)
    bench.ranks(1)
    bench.controller.order(api.FinishAttempt(1, grace_s=0.3, at_step=10**6))
    assert [rank.exit_code for rank in bench.ended(1).ranks] == [-signal.SIGTERM] * 2


def test_steps_of_an_unmodified_script_are_read_from_its_lines(bench: Bench) -> None:
    bench.start(1, (sys.executable, "rank.py", "lines"))
    seen = bench.stepped(1, 3)
    assert seen.source == "log" and seen.rows[-1].loss == pytest.approx(10 / seen.rows[-1].step, abs=1e-4)
    status = bench.ranks(1, 1, instrumented=False)[0]
    assert not status.instrumented and status.pid == bench.began(1).launcher_pid
    assert any("is not torchrun" in note for note in bench.began(1).notes)
    assert [rank.exit_code for rank in bench.stop(1).ranks] == [-signal.SIGTERM]


def test_checkpoint_events_are_passed_on_as_they_stand(bench: Bench) -> None:
    bench.start(1, (sys.executable, "rank.py", "facts"))
    fact = bench.controller.wait_for(api.CheckpointFact)
    assert fact.attempt == 1 and fact.fact == {"event": "committed", "step": 7}
    bench.stop(1)
    assert len(bench.controller.all_of(api.CheckpointFact)) == 1


def test_an_older_or_equal_attempt_is_not_started(bench: Bench) -> None:
    bench.start(5, (sys.executable, "rank.py", "client"))
    bench.stepped(5)
    bench.start(4, (sys.executable, "rank.py", "client"))
    bench.start(5, (sys.executable, "rank.py", "client"))
    wait_until(lambda: len(bench.controller.all_of(api.AttemptBegan)) >= 2, "the agent says again that attempt 5 runs")
    assert {report.launcher_pid for report in bench.controller.all_of(api.AttemptBegan)} == {
        bench.began(5).launcher_pid
    }
    bench.stop(5)
    bench.start(5, (sys.executable, "rank.py", "client"))
    wait_until(lambda: len(bench.controller.all_of(api.AttemptEnded)) >= 2, "the agent says again that attempt 5 ended")
    assert {report.attempt for report in bench.controller.all_of(api.AttemptBegan)} == {5}


def test_a_newer_attempt_begins_only_when_the_older_is_gone(bench: Bench) -> None:
    bench.start(1, small_ranks("client"))
    pids = [rank.pid for rank in bench.ranks(1)]
    bench.start(2, small_ranks("client"))
    began = bench.began(2)
    assert all(is_gone(pid) for pid in pids) and bench.ended(1).at <= began.at
    bench.stop(2)


def test_a_command_that_cannot_be_started_is_refused_with_the_reason(bench: Bench) -> None:
    bench.start(1, ("no-such-program",))
    assert "there is no program 'no-such-program'" in bench.controller.wait_for(api.LaunchRefused).message
    bench.start(2, (str(TORCHRUN), "--max-restarts", "3", "train.py"))
    refused = bench.controller.wait_for(api.LaunchRefused, lambda report: report.attempt == 2)
    assert refused.message.startswith("--max-restarts in the torchrun command")


def test_a_second_agent_for_the_node_ends_at_once(bench: Bench) -> None:
    wait_until(lambda: len(bench.controller.batches) > 0, "the first agent works")
    second = bench.start_agent()
    assert second.wait(DEADLINE_S) == 3
    assert "another agent works for run bench on n0" in (bench.folder / "agent.log").read_text()
    bench.agents.pop()


def test_an_agent_that_is_told_to_leave_does_so_once_nothing_runs(bench: Bench) -> None:
    bench.start(1, small_ranks("client"))
    bench.stepped(1)
    bench.controller.order(api.Leave())
    bench.stop(1)
    assert bench.agents[0].wait(DEADLINE_S) == 0


def test_an_agent_whose_allocation_is_taken_away_leaves_nothing_behind(bench: Bench) -> None:
    bench.start(1, small_ranks("client"))
    ranks = bench.ranks(1)
    launcher = bench.began(1).launcher_pid
    bench.agents[0].send_signal(signal.SIGTERM)
    assert bench.agents[0].wait(DEADLINE_S) == 0
    assert all(is_gone(pid) for pid in (launcher, *(rank.pid for rank in ranks)))
    assert bench.ended(1).by_us


def test_a_launch_of_somebody_else_is_watched_and_never_touched(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.controller.open()
    command = small_ranks("lines")
    with (tmp_path / "theirs.log").open("wb") as output:
        theirs = subprocess.Popen(command, cwd=PROGRAMS, stdout=output, env={"PYTHONPATH": str(REPOSITORY)})
    bench.start_agent("--attach", str(theirs.pid))
    bench.start(1, command)
    assert bench.began(1).launcher_pid == theirs.pid
    assert bench.stepped(1, 3).source == "log"
    ranks = bench.ranks(1, instrumented=False)
    bench.controller.order(api.StopAttempt(1, 0.0, False, 1, ""))
    bench.controller.order(api.FinishAttempt(1, 0.0))
    wait_until(lambda: (tmp_path / "agent.log").read_text().count("only watched") == 2, "both orders have come")
    bench.agents[0].send_signal(signal.SIGTERM)
    assert bench.agents[0].wait(DEADLINE_S) == 0
    assert not any(is_gone(rank.pid) for rank in ranks)
    bench.controller.forget_orders()
    bench.start_agent("--attach", str(theirs.pid))
    wait_until(lambda: (tmp_path / "agent.log").read_text().count("adopting attempt 1") == 1, "it is watched again")
    os.kill(ranks[0].pid, signal.SIGKILL)
    assert theirs.wait(DEADLINE_S) == 1
    os.kill(ranks[1].pid, signal.SIGKILL)
    ended = bench.ended(1)
    assert not ended.by_us and {rank.pid for rank in ended.ranks} == {rank.pid for rank in ranks}
    bench.close()


@pytest.mark.parametrize("mode", ["launcher", "ranks"])
def test_a_warm_start_trains_the_same_weights_as_a_cold_one(bench: Bench, mode: str) -> None:
    bench.start(1, torchrun("20"))
    assert bench.ended(1).exit_code == 0
    bench.start(2, torchrun("100000"), warm=mode)
    bench.stepped(2, 3)
    wait_until(lambda: standby_has_loaded(bench), "the standby has imported torch")
    bench.stop(2)
    bench.start(3, torchrun("20"), warm=mode)
    ended = bench.ended(3)
    assert bench.began(3).warm, bench.began(3).notes
    assert ended.exit_code == 0 and [rank.exit_code for rank in ended.ranks] == [0, 0]
    cold, warm = bench.output(1, 0), bench.output(3, 0)
    assert re.findall(r"digest \w+|threads \d+", cold) == re.findall(r"digest \w+|threads \d+", warm)
    assert re.findall(r"random \S+", warm) != re.findall(r"random \S+", bench.output(3, 1))
    assert all(rank.finished for rank in ended.ranks)


def test_a_forked_rank_fails_as_an_ordinary_one_does(bench: Bench) -> None:
    bench.start(1, torchrun("100000"), warm="ranks")
    bench.stepped(1, 3)
    wait_until(lambda: standby_has_loaded(bench), "the standby has imported torch")
    bench.stop(1)
    bench.start(2, torchrun("100000", "raise"), warm="ranks")
    ended = bench.ended(2)
    assert bench.began(2).warm, bench.began(2).notes
    assert ended.exit_code == 1 and 1 in [rank.exit_code for rank in ended.ranks]
    errors = bench.output(2, 0, "stderr") + bench.output(2, 1, "stderr")
    assert "ValueError: a mistake in the script" in errors and "standby.py" not in errors


def standby_has_loaded(bench: Bench, times: int = 1) -> bool:
    return (bench.folder / "agent.log").read_text().count("a standby is ready") >= times
