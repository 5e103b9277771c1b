# SPDX-License-Identifier: Apache-2.0
"""A world for property tests: small numbers become events, sensible and senseless, in any order and for any attempt.

A move is three numbers: what happens, and two that choose its details. Hypothesis draws a story as plain bytes, which
is quick, and shrinks it to a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from hypothesis import strategies as st

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.machine import advance
from supervisor.core.policy import Budget, Policy
from supervisor.core.state import RunState
from supervisor.core.values import Category, Checkpoint, FailureKind, Mode, OrderKind, Power
from tests.supervisor.core.journeys import (
    BAD_GPU,
    CRASH,
    NOT_NAMED,
    SCRIPT_BUG,
    SPIKE,
    STORAGE_AWAY,
    SUSPECT,
    WANDB_AWAY,
)

Move: TypeAlias = tuple[int, int, int]
NODES = ("n1", "n2", "n3")
VERDICTS = (CRASH, CRASH, NOT_NAMED, BAD_GPU, SUSPECT, SPIKE, STORAGE_AWAY, WANDB_AWAY, SCRIPT_BUG)
TIGHT = tuple((c, Budget(2, 600.0)) for c in Category)
POLICIES = {
    "act": Policy(rollback_margin_steps=5, skip_batches=10, spare_nodes=1),
    "probe": Policy(can_probe=True, spare_nodes=2, rollback_margin_steps=2, skip_batches=3, same_place_batches=3),
    "ask": Policy(ask_when_exhausted=True, budgets=TIGHT, most_rollbacks=1, skip_first=True, rollback_margin_steps=0),
    "tight": Policy(budgets=TIGHT, same_failure_limit=3),
    "no rollback": Policy(powers=frozenset(Power) - {Power.ROLLBACK}, spare_nodes=1),
    "no relaunch": Policy(powers=frozenset({Power.STOP, Power.ISOLATE}), spare_nodes=1, can_probe=True),
    "advise": Policy(mode=Mode.ADVISE, spare_nodes=1),
    "observe": Policy(mode=Mode.OBSERVE, can_probe=True, spare_nodes=1),
}


class World:
    """Keeps the state and the journal; `attempt` of an event is mostly the newest, at times another one."""

    def __init__(self, policy: Policy, *, attached: bool = False) -> None:
        self.policy = policy
        self.at = 1000.0
        self.journal: list[e.Event] = []
        self.state, self.made = advance(None, e.RunSubmitted(self.at, "gpt", 2, attached=attached), policy)
        self.journal.append(e.RunSubmitted(self.at, "gpt", 2, attached=attached))

    def take(self, event: e.Event) -> None:
        self.state, self.made = advance(self.state, event, self.policy)
        self.journal.append(event)

    def make(self, move: Move) -> e.Event:
        what, first, second = move
        return MOVES[what % len(MOVES)](self, first, second)

    def passes(self, seconds: float) -> float:
        self.at += seconds
        return self.at

    @property
    def step(self) -> int:
        return self.state.step or self.state.resume_step or 0

    def answer(self, first: int, second: int) -> e.Event:
        """What the decision that is pending asks for; a sample while nothing is pending."""
        at, attempt = self.passes(1.0 + first), self.state.attempt
        match self.state.pending:
            case d.Launch():
                return e.AttemptStarted(at, attempt, NODES[:2])
            case d.Stop() | d.Finish():
                return e.AttemptEnded(at, attempt, second == 0, second)
            case d.Diagnose():
                return e.Diagnosed(at, attempt, VERDICTS[second % len(VERDICTS)], jitter=first / 8)
            case d.Probe():
                return e.Probed(at, attempt, NODES[: second % 2], NODES[second % 3 :])
            case None:
                return self.sample(first, second)

    def sample(self, first: int, second: int) -> e.Event:
        step = None if first == 7 else self.step + second + 1
        return e.ProgressSampled(self.passes(10.0), self.state.attempt, step, step)

    def old_sample(self, first: int, second: int) -> e.Event:
        return e.ProgressSampled(self.passes(1.0), self.state.attempt - first, second, second)

    def start(self, first: int, second: int) -> e.Event:
        return e.AttemptStarted(self.passes(1.0), self.state.attempt - max(0, first - 4), NODES[second % 3 :])

    def fail_launch(self, first: int, second: int) -> e.Event:
        return e.LaunchFailed(self.passes(1.0), self.state.attempt, "no", second == 0)

    def restore(self, first: int, second: int) -> e.Event:
        if second == 0:
            return e.RanksImported(self.passes(1.0), self.state.attempt)
        step = None if first == 0 else max(0, self.step - first)
        return e.AttemptRestored(self.passes(1.0), self.state.attempt, step, "older" if second == 1 else "")

    def commit(self, first: int, second: int) -> e.Event:
        attempt = self.state.attempt - max(0, first - 5)
        health = (None, None, None, True, False)[second % 5]
        step = max(0, self.step - first)
        return e.CheckpointCommitted(self.passes(0.5), attempt, Checkpoint(step, attempt, step, health))

    def spoil(self, first: int, second: int) -> e.Event:
        """A checkpoint that is known turns out to be unhealthy, or is told again."""
        if not self.state.checkpoints:
            return self.commit(first, second)
        known = self.state.checkpoints[first % len(self.state.checkpoints)]
        told = Checkpoint(known.step, known.attempt, known.position, (False, None)[second % 2])
        return e.CheckpointCommitted(self.passes(0.5), self.state.attempt, told)

    def fail(self, first: int, second: int) -> e.Event:
        at, attempt = self.passes(1.0), self.state.attempt - max(0, first - 5)
        if second < 3:
            return e.RankFailed(at, attempt, first, NODES[first % 2], (None, 1, -9)[second], at - second)
        if second < 5:
            return e.HangFound(at, attempt, self.step, at - 30.0, "no step", NODES[: first % 2])
        where = max(0, self.step - first)
        kind = (FailureKind.SPIKE, FailureKind.NAN, FailureKind.SPIKE)[second - 5]
        return e.LossSpiked(at, attempt, kind, where, where, where + second, at - 3.0, "jumped")

    def end(self, first: int, second: int) -> e.Event:
        return e.AttemptEnded(self.passes(1.0), self.state.attempt - max(0, first - 6), second == 0, second)

    def diagnose(self, first: int, second: int) -> e.Event:
        steps = sorted({max(0, self.step - k) for k in range(0, 9, 3)})
        listed = tuple(Checkpoint(s, max(1, self.state.attempt - 1), s) for s in steps[: second % 4])
        newest = self.state.attempt + (2 if second == 7 else 0)
        verdict = VERDICTS[first % len(VERDICTS)]
        return e.Diagnosed(self.passes(2.0), self.state.attempt, verdict, listed if second > 2 else None, newest)

    def cordon(self, first: int, second: int) -> e.Event:
        return e.NodeCordoned(self.passes(1.0), NODES[first % 3])

    def order(self, first: int, second: int) -> e.Event:
        kind = tuple(OrderKind)[(first + 8 * (second % 2)) % len(OrderKind)]
        step = max(0, self.step - second)
        node = NODES[second % 3]
        return e.OrderGiven(self.passes(1.0), kind, "ada", "", step, step, step + first - 1, node, 1, "ECCError")

    def signal(self, first: int, second: int) -> e.Event:
        if second < 5:
            return self.sample(first, second)
        return e.StopSignalled(self.passes(1.0), "SIGTERM", (None, 5.0)[first % 2])

    def wait(self, first: int, second: int) -> e.Event:
        return e.TimePassed(self.passes(float(first * second)))

    def reach_deadline(self, first: int, second: int) -> e.Event:
        if not self.state.is_final:
            self.at = max(self.at, self.state.deadline)
        return e.TimePassed(self.at)

    def come_back(self, first: int, second: int) -> e.Event:
        return e.ControllerReturned(self.passes(100.0 * first))

    def submit(self, first: int, second: int) -> e.Event:
        return e.RunSubmitted(self.passes(1.0), "gpt", 2, first, attached=self.state.attached)

    def repeat(self, first: int, second: int) -> e.Event:
        """An event from the journal once more, late."""
        return self.journal[-1 - (8 * first + second) % len(self.journal)]


MOVES: tuple[Callable[[World, int, int], e.Event], ...] = (
    World.answer,
    World.answer,
    World.answer,
    World.answer,
    World.answer,
    World.sample,
    World.sample,
    World.commit,
    World.commit,
    World.fail,
    World.fail,
    World.diagnose,
    World.diagnose,
    World.end,
    World.spoil,
    World.restore,
    World.reach_deadline,
    World.wait,
    World.repeat,
    World.start,
    World.old_sample,
    World.cordon,
    World.fail_launch,
    World.come_back,
    World.submit,
    World.signal,
    World.order,
    World.order,
    World.order,
)
BY_PERSON = (e.OrderGiven, e.StopSignalled, e.RunSubmitted)


def moves(*, with_person: bool = True, most: int = 60) -> st.SearchStrategy[list[Move]]:
    """Lists of moves; without a person there are neither orders nor signals nor submissions."""
    count = len(MOVES) if with_person else MOVES.index(World.submit)
    sizes = st.integers(0, most).flatmap(lambda size: st.binary(min_size=2 * size, max_size=2 * size))
    return sizes.map(lambda raw: [(what % count, how % 8, how // 8 % 8) for what, how in pairwise(raw)])


def pairwise(raw: bytes) -> Iterator[tuple[int, int]]:
    return zip(raw[::2], raw[1::2], strict=True)


def play(world: World, story: list[Move], watch: Callable[[RunState, e.Event, World], None]) -> None:
    for move in story:
        event = world.make(move)
        before = world.state
        world.take(event)
        watch(before, event, world)
