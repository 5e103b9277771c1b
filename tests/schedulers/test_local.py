# SPDX-License-Identifier: Apache-2.0
"""The local scheduler: the contract of all schedulers, and that what it starts outlives it and dies by cancel."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schedulers.api import Allocation, AllocationSpec, NodeState, SchedulerError
from schedulers.local import MARK, LocalScheduler
from tests.schedulers.contract import SchedulerContract, states, wait_until

SLEEPER = ("/bin/sh", "-c", "echo agent of {node}; sleep 600 & echo $! >child-of-{node}; wait")


@pytest.fixture
def scheduler(tmp_path: Path) -> LocalScheduler:
    return LocalScheduler(tmp_path / "scheduler")


@pytest.fixture
def spec(tmp_path: Path, scheduler: LocalScheduler) -> Iterator[AllocationSpec]:
    spec = AllocationSpec(
        run="gpt/one",
        nodes=2,
        agent_command=SLEEPER,
        working_folder=str(tmp_path),
        log_folder=str(tmp_path / "logs"),
    )
    yield spec
    scheduler.cancel(Allocation(spec.run, "", ()))


def pid_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().strip() != "", f"{path} names a process")
    return int(path.read_text())


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class TestLocalScheduler(SchedulerContract):
    def test_nodes_are_named_by_number_and_agents_write_into_the_log_folder(
        self, scheduler: LocalScheduler, spec: AllocationSpec, tmp_path: Path
    ) -> None:
        assert scheduler.submit(spec).nodes == ("node-0", "node-1")
        log = tmp_path / "logs" / "node-1.log"
        wait_until(lambda: log.read_text() == "agent of node-1\n", "the agent's output is in its log")

    def test_another_instance_finds_the_agents_and_starts_none_again(
        self, scheduler: LocalScheduler, spec: AllocationSpec, tmp_path: Path
    ) -> None:
        allocation = scheduler.submit(spec)
        before = pid_in(tmp_path / "child-of-node-0")
        other = LocalScheduler(tmp_path / "scheduler")
        assert other.find(spec.run) == allocation
        assert other.submit(spec) == allocation
        assert pid_in(tmp_path / "child-of-node-0") == before and not is_gone(before)

    def test_submitting_again_starts_only_the_agent_that_is_gone(
        self, scheduler: LocalScheduler, spec: AllocationSpec, tmp_path: Path
    ) -> None:
        allocation = scheduler.submit(spec)
        children = [pid_in(tmp_path / f"child-of-{node}") for node in allocation.nodes]
        os.kill(children[1], signal.SIGKILL)
        wait_until(lambda: states(scheduler, allocation) == [NodeState.RUNNING, NodeState.ENDED], "one agent ended")
        assert "submit starts it again" in scheduler.status(allocation)[1].why
        (tmp_path / "child-of-node-1").unlink()
        scheduler.submit(spec)
        assert pid_in(tmp_path / "child-of-node-1") != children[1]
        assert pid_in(tmp_path / "child-of-node-0") == children[0]

    def test_an_agent_whose_starter_died_before_writing_it_down_is_found_again(
        self, scheduler: LocalScheduler, spec: AllocationSpec, tmp_path: Path
    ) -> None:
        allocation = scheduler.submit(spec)
        children = [pid_in(tmp_path / f"child-of-{node}") for node in allocation.nodes]
        Path(allocation.identity).unlink()
        assert LocalScheduler(tmp_path / "scheduler").submit(spec) == allocation
        assert [pid_in(tmp_path / f"child-of-{node}") for node in allocation.nodes] == children

    def test_cancel_ends_the_agent_of_a_node_that_was_left_out_meanwhile(
        self, scheduler: LocalScheduler, spec: AllocationSpec, tmp_path: Path
    ) -> None:
        scheduler.submit(replace(spec, nodes=1))
        child = pid_in(tmp_path / "child-of-node-0")
        scheduler.cordon("node-0", "slow")
        scheduler.cancel(scheduler.submit(replace(spec, nodes=1)))
        assert is_gone(child)

    def test_cancel_ends_what_a_dead_agent_has_left_behind(
        self, scheduler: LocalScheduler, spec: AllocationSpec, tmp_path: Path
    ) -> None:
        allocation = scheduler.submit(replace(spec, nodes=1))
        child = pid_in(tmp_path / "child-of-node-0")
        agent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: states(scheduler, allocation) == [NodeState.ENDED], "the agent is gone")
        assert not is_gone(child)
        scheduler.cancel(allocation)
        assert is_gone(child)

    def test_cancel_leaves_the_allocation_of_another_run_alone(
        self, scheduler: LocalScheduler, spec: AllocationSpec, tmp_path: Path
    ) -> None:
        other_folder = tmp_path / "other"
        other_folder.mkdir()
        other = replace(spec, run="gpt/two", nodes=1, working_folder=str(other_folder))
        kept = scheduler.submit(other)
        scheduler.cancel(scheduler.submit(spec))
        assert states(scheduler, kept) == [NodeState.RUNNING]
        scheduler.cancel(kept)

    def test_agents_get_the_environment_of_the_spec_and_the_mark(
        self, scheduler: LocalScheduler, spec: AllocationSpec, tmp_path: Path
    ) -> None:
        command = ("/bin/sh", "-c", f'echo "$COLOUR $$ ${MARK}" >seen.part && mv seen.part seen; sleep 600')
        allocation = scheduler.submit(replace(spec, nodes=1, agent_command=command, environment=(("COLOUR", "blue"),)))
        wait_until((tmp_path / "seen").exists, "the agent wrote what it saw")
        assert (tmp_path / "seen").read_text().split()[::2] == ["blue", allocation.identity]

    def test_an_agent_that_cannot_be_started_is_an_error_that_names_it(
        self, scheduler: LocalScheduler, spec: AllocationSpec
    ) -> None:
        with pytest.raises(SchedulerError, match=r"cannot start the agent of node-0 by \['/no/such/agent'\]"):
            scheduler.submit(replace(spec, agent_command=("/no/such/agent",)))

    def test_an_allocation_without_nodes_is_an_error(self, scheduler: LocalScheduler, spec: AllocationSpec) -> None:
        with pytest.raises(SchedulerError, match="asks for 0 nodes; ask for 1 or more"):
            scheduler.submit(replace(spec, nodes=0))

    def test_a_damaged_record_is_an_error_that_names_the_file(
        self, scheduler: LocalScheduler, spec: AllocationSpec
    ) -> None:
        allocation = scheduler.submit(spec)
        path = Path(allocation.identity)
        whole = path.read_text()
        path.write_text("[1]")
        with pytest.raises(SchedulerError, match=r"gpt%2Fone\.json holds no object"):
            scheduler.find(spec.run)
        path.write_text('{"node-0": 5}')
        with pytest.raises(SchedulerError, match="does not name agents"):
            scheduler.find(spec.run)
        path.write_text(whole)

    def test_an_agent_may_be_run_by_this_interpreter(self, scheduler: LocalScheduler, spec: AllocationSpec) -> None:
        command = (sys.executable, "-c", "import time; time.sleep(600)", "{node}")
        allocation = scheduler.submit(replace(spec, nodes=1, agent_command=command))
        assert states(scheduler, allocation) == [NodeState.RUNNING]
