# SPDX-License-Identifier: Apache-2.0
"""A damaged `attempt.json` starts nothing beside what lives, is set aside when nothing does, and a person is told."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from supervisor.agent import api, processes
from tests.system.supervised import SCRIPTS, Supervised, torchrun
from tests.system.test_agent import Bench, bench, is_gone, small_ranks, wait_until
from tests.system.test_agent import torchrun as small_torchrun

__all__ = ["bench"]

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def damage(bench: Bench) -> Path:
    path = bench.folder / "agents" / "n0" / "attempt.json"
    path.write_bytes(path.read_bytes()[:-40] + b"\0" * 40)
    return path


def remark(bench: Bench, text: str) -> str:
    return bench.controller.wait_for(api.Remark, lambda report: text in report.text).text


@pytest.mark.parametrize("warm", ["off", "ranks"])
def test_nothing_starts_beside_ranks_whose_record_is_damaged_and_a_stop_ends_them(bench: Bench, warm: str) -> None:
    command = small_torchrun("100000") if warm == "ranks" else small_ranks("client")
    newest = 1
    bench.start(1, command, warm=warm)
    bench.stepped(1)
    if warm == "ranks":
        newest = 2
        wait_until(lambda: "a standby is ready" in (bench.folder / "agent.log").read_text(), "a standby")
        bench.stop(1)
        bench.start(2, command, warm=warm)
        assert bench.began(2).warm
        bench.stepped(2)
    ranks = bench.ranks(newest)
    bench.kill_agent()
    path = damage(bench)
    bench.start_agent()

    said = remark(bench, "still run on this node")
    assert str(path) in said and "supervisor stop" in said
    bench.start(newest + 1, command)
    refused = bench.controller.wait_for(api.LaunchRefused, lambda report: report.attempt == newest + 1)
    assert not refused.permanent
    assert not any(is_gone(each.pid) for each in ranks) and path.exists()

    ended = bench.stop(newest)
    assert ended.by_us and all(is_gone(each.pid) for each in ranks)
    remark(bench, "it was moved to")
    bench.start(newest + 1, command)
    bench.stepped(newest + 1)
    bench.stop(newest + 1)


def test_a_damaged_record_of_ranks_that_are_gone_is_set_aside_and_their_attempt_is_not_started_again(
    bench: Bench,
) -> None:
    bench.start(1, small_ranks("client"))
    ranks, launcher = bench.ranks(1), bench.began(1).launcher_pid
    bench.kill_agent()
    path = damage(bench)
    for pid in (launcher, *(each.pid for each in ranks)):
        signal_if_there(pid)
    wait_until(lambda: all(is_gone(pid) for pid in (launcher, *(each.pid for each in ranks))), "the attempt is gone")
    bench.start_agent()

    said = remark(bench, "it was moved to")
    aside = path.with_name("attempt.json.damaged")
    assert str(aside) in said and aside.exists()
    ended = bench.ended(1)
    assert (ended.exit_code, ended.by_us) == (None, False)
    bench.start(1, small_ranks("client"))
    bench.start(2, small_ranks("client"))
    bench.stepped(2)
    begun = [report.attempt for _, report in bench.controller.reports if isinstance(report, api.AttemptBegan)]
    assert begun.count(1) == 1 and 2 in begun
    bench.stop(2)


def signal_if_there(pid: int) -> None:
    found = processes.identity_of(pid)
    if found is not None:
        processes.send(found, signal.SIGKILL)


def test_why_an_agent_cannot_work_is_told_while_the_run_waits_for_it(supervised: Supervised) -> None:
    own = supervised.folder / "agents" / "node-0"
    (own / "lock").mkdir(parents=True)
    supervised.start(*torchrun(SCRIPTS / "counting.py", "--steps", "20", "--quiet"))
    supervised.wait_for_output("the agent of node-0 cannot work")
    (line,) = [line for line in supervised.output.splitlines() if "cannot work" in line]
    assert str(own / "lock") in line and "mend that" in line
    (own / "lock").rmdir()
    assert supervised.end() == 0, supervised.output
    assert not (own / api.LAST_WORDS_FILE).exists()


def test_a_run_that_is_taken_up_again_sets_a_damaged_record_aside_and_says_so(supervised: Supervised) -> None:
    command = torchrun(SCRIPTS / "counting.py", "--steps", "100000", "--quiet")
    supervised.start(*command)
    supervised.wait_for_step(5)
    supervised.order("stop")
    assert supervised.end() == 130
    record = supervised.folder / "agents" / "node-0" / "attempt.json"
    record.write_text("{ torn")
    supervised.start(*command)
    supervised.wait_for_step(5, attempt=2)
    supervised.order("stop")
    assert supervised.end() == 130
    assert f"node-0: {record} is damaged" in supervised.output and "it was moved to" in supervised.output
