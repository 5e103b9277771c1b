# SPDX-License-Identifier: Apache-2.0
"""What every scheduler has to do; a backend's test class inherits this and gives its fixtures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from schedulers.api import Allocation, AllocationSpec, NodeState, Scheduler

DEADLINE_S = 60.0


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < until, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def states(scheduler: Scheduler, allocation: Allocation) -> list[NodeState]:
    return [each.state for each in scheduler.status(allocation)]


class SchedulerContract:
    """`spec` asks for two nodes whose agents run until they are ended."""

    def test_every_node_of_an_allocation_runs_an_agent(self, scheduler: Scheduler, spec: AllocationSpec) -> None:
        allocation = scheduler.submit(spec)
        assert allocation.run == spec.run and len(set(allocation.nodes)) == spec.nodes
        wait_until(
            lambda: states(scheduler, allocation) == [NodeState.RUNNING] * spec.nodes,
            "all agents of the run are running",
        )

    def test_submitting_the_same_spec_twice_yields_the_same_allocation(
        self, scheduler: Scheduler, spec: AllocationSpec
    ) -> None:
        assert scheduler.submit(spec) == scheduler.submit(spec)

    def test_a_living_allocation_is_found_by_its_run(self, scheduler: Scheduler, spec: AllocationSpec) -> None:
        allocation = scheduler.submit(spec)
        assert scheduler.find(spec.run) == allocation
        assert scheduler.find("another run") is None

    def test_a_cancelled_allocation_is_no_longer_found(self, scheduler: Scheduler, spec: AllocationSpec) -> None:
        allocation = scheduler.submit(spec)
        scheduler.cancel(allocation)
        wait_until(lambda: scheduler.find(spec.run) is None, "the allocation is gone")
        assert NodeState.RUNNING not in states(scheduler, allocation)

    def test_cancelling_twice_is_no_error(self, scheduler: Scheduler, spec: AllocationSpec) -> None:
        allocation = scheduler.submit(spec)
        scheduler.cancel(allocation)
        scheduler.cancel(allocation)

    def test_a_cordoned_node_is_held_with_its_reason_until_it_is_given_back(
        self, scheduler: Scheduler, spec: AllocationSpec
    ) -> None:
        node = scheduler.submit(spec).nodes[0]
        scheduler.cordon(node, "two uncorrectable memory errors")
        scheduler.cordon(node, "two uncorrectable memory errors")
        assert scheduler.cordoned() == {node: "two uncorrectable memory errors"}
        scheduler.uncordon(node)
        scheduler.uncordon(node)
        assert scheduler.cordoned() == {}

    def test_a_later_allocation_leaves_a_cordoned_node_out(self, scheduler: Scheduler, spec: AllocationSpec) -> None:
        first = scheduler.submit(spec)
        scheduler.cancel(first)
        scheduler.cordon(first.nodes[0], "slow")
        second = scheduler.submit(replace(spec, nodes=1))
        assert first.nodes[0] not in second.nodes
        scheduler.uncordon(first.nodes[0])

    def test_an_allocation_goes_on_without_a_node_that_is_cordoned_meanwhile(
        self, scheduler: Scheduler, spec: AllocationSpec
    ) -> None:
        first = scheduler.submit(spec)
        scheduler.cordon(first.nodes[0], "off the bus")
        second = scheduler.submit(spec)
        assert len(second.nodes) == spec.nodes and first.nodes[0] not in second.nodes
        scheduler.uncordon(first.nodes[0])
        assert scheduler.submit(spec) == second

    def test_a_node_that_the_run_does_not_want_is_replaced_and_not_held(
        self, scheduler: Scheduler, spec: AllocationSpec
    ) -> None:
        first = scheduler.submit(spec)
        other = scheduler.submit(replace(spec, excluded=first.nodes[:1]))
        assert first.nodes[0] not in other.nodes
        assert len(other.nodes) == spec.nodes
        assert scheduler.cordoned() == {}
