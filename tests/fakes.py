# SPDX-License-Identifier: Apache-2.0
"""Fakes of the project's own ports, for unit tests. They keep what they were given, so that a test can look."""

from __future__ import annotations

from dataclasses import dataclass, field

from schedulers.api import Allocation, AllocationSpec, NodeState, NodeStatus
from supervisor.controller.api import RunView
from supervisor.core.api import Checkpoint, RunState, Severity, decisions, events


class FakeClock:
    """Unix seconds that only move when a test says so."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeDisplay:
    lines: list[str] = field(default_factory=list)
    views: list[RunView] = field(default_factory=list)

    def told(self, at: float, severity: Severity, text: str, incident: int) -> None:
        self.lines.append(f"{severity.value}: {text}")

    def progress(self, view: RunView) -> None:
        self.views.append(view)


@dataclass
class FakeScheduler:
    """Nodes that run as soon as they are asked for."""

    allocations: dict[str, Allocation] = field(default_factory=dict)
    states: dict[str, NodeState] = field(default_factory=dict)
    submitted: int = 0
    held: dict[str, str] = field(default_factory=dict)

    def submit(self, spec: AllocationSpec) -> Allocation:
        self.submitted += 1
        nodes = tuple(f"node-{number}" for number in range(spec.nodes))
        for node in nodes:
            self.states[node] = NodeState.RUNNING
        self.allocations[spec.run] = Allocation(spec.run, "fake", nodes)
        return self.allocations[spec.run]

    def find(self, run: str) -> Allocation | None:
        return self.allocations.get(run)

    def status(self, allocation: Allocation) -> tuple[NodeStatus, ...]:
        return tuple(NodeStatus(node, self.states[node]) for node in allocation.nodes)

    def cancel(self, allocation: Allocation) -> None:
        self.allocations.pop(allocation.run, None)

    def cordon(self, node: str, why: str) -> None:
        self.held[node] = why

    def uncordon(self, node: str) -> None:
        self.held.pop(node, None)

    def cordoned(self) -> dict[str, str]:
        return dict(self.held)


@dataclass
class FakeEffects:
    """Answers each decision with the event that `answers` holds for its kind; an exception there is raised."""

    answers: dict[str, list[events.Event | Exception | None]] = field(default_factory=dict)
    carried_out: list[decisions.Decision] = field(default_factory=list)
    uris: list[str] = field(default_factory=list)
    health: list[bool] = field(default_factory=list)
    checkpoints: tuple[Checkpoint, ...] | None = None
    looks: int = 0
    """How often the agents were looked after."""

    def carry_out(self, decision: decisions.Decision, state: RunState) -> events.Event | None:
        self.carried_out.append(decision)
        waiting = self.answers.get(type(decision).__name__, [])
        answer = waiting.pop(0) if waiting else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def learn_uri(self, uri: str) -> None:
        self.uris.append(uri)
        self._raise_if_meant("learn_uri")

    def mark_health(self, state: RunState, healthy: bool) -> None:
        self.health.append(healthy)

    def stored(self) -> tuple[Checkpoint, ...] | None:
        return self.checkpoints

    def look_after_agents(self) -> None:
        self.looks += 1
        self._raise_if_meant("look_after_agents")

    def _raise_if_meant(self, name: str) -> None:
        answer = self.answers[name].pop(0) if self.answers.get(name) else None
        if isinstance(answer, Exception):
            raise answer
