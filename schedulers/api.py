# SPDX-License-Identifier: Apache-2.0
"""The port to whatever gives a run its nodes.

An allocation is a set of nodes, each with one agent that lives as long as the allocation does.
Attempts start and stop inside an allocation, so this port knows nothing of attempts, ranks or checkpoints.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class SchedulerError(Exception):
    """A scheduler could not do what was asked; the message names the thing, the value and the next step."""


class NodeState(str, enum.Enum):
    """Where the agent of one node stands."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class AllocationSpec:
    """What a run needs; the same spec submitted twice yields the same allocation."""

    run: str
    nodes: int
    agent_command: tuple[str, ...]
    """Started once on each node, with `{node}` replaced by the node's name."""
    working_folder: str
    log_folder: str
    environment: tuple[tuple[str, str], ...] = ()
    excluded: tuple[str, ...] = ()
    """Nodes that the run does not want, whoever else may use them."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    node: str
    state: NodeState
    why: str = ""


@dataclass(frozen=True, slots=True)
class Allocation:
    run: str
    identity: str
    """The scheduler's own name for it: a job id, or the folder of the local scheduler."""
    nodes: tuple[str, ...]


class Scheduler(Protocol):
    """All calls are idempotent and raise SchedulerError only."""

    def submit(self, spec: AllocationSpec) -> Allocation:
        """Make the allocation, or start again those of its agents that are gone; running ones are left alone."""

    def find(self, run: str) -> Allocation | None:
        """The run's living allocation, if there is one."""

    def status(self, allocation: Allocation) -> tuple[NodeStatus, ...]:
        """One entry a node."""

    def cancel(self, allocation: Allocation) -> None:
        """End every agent of the allocation and what they started."""

    def cordon(self, node: str, why: str) -> None:
        """Keep the node out of later allocations, with the reason in the scheduler's own field."""

    def uncordon(self, node: str) -> None:
        """Give a node back that this supervisor cordoned."""

    def cordoned(self) -> dict[str, str]:
        """Node to reason, of the nodes that this supervisor holds."""
