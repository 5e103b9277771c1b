# SPDX-License-Identifier: Apache-2.0
"""A run driven by hand: short words for events, and a journey to every place that a run can stand in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.machine import advance
from supervisor.core.policy import Policy
from supervisor.core.state import RunState
from supervisor.core.values import (
    Action,
    Category,
    Checkpoint,
    FailureKind,
    Mode,
    OrderKind,
    Verdict,
)

CRASH = Verdict("CUDAError", Category.INFRASTRUCTURE, Action.RESTART_SAME, "a CUDA call failed", "", 0.9, "signature:x")
BAD_GPU = Verdict(
    "ECCError",
    Category.INFRASTRUCTURE,
    Action.ISOLATE_NODE_AND_RESTART,
    "uncorrectable ECC",
    suspects=("n1",),
    fatal=True,
)
SUSPECT = Verdict(
    "NCCLTimeout", Category.INFRASTRUCTURE, Action.ISOLATE_NODE_AND_RESTART, "a collective timed out", suspects=("n1",)
)
SCRIPT_BUG = Verdict(
    "KeyError", Category.SCRIPT, Action.FIX_USER, "KeyError: 'lr' in train.py:7", "set lr in the config"
)
STORAGE_AWAY = Verdict("StorageError", Category.OTHER, Action.WAIT_AND_RETRY, "the bucket does not answer")
WANDB_AWAY = Verdict("ServiceError", Category.OTHER, Action.RESTART_SAME, "wandb does not answer", service="wandb")
SPIKE = Verdict("LossSpike", Category.OTHER, Action.ROLLBACK, "the loss jumped")
NO_MESSAGE = Verdict("Unknown", Category.OTHER, Action.FIX_USER, "exit code 3 without a message.", "print the error")
NOT_NAMED = Verdict("Unknown", Category.OTHER, Action.RESTART_SAME, "nothing in the logs tells why")


class Journey:
    """Feeds events one by one; `made` holds the decisions of the last one, `all_made` those of all."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.at = 1000.0
        self.journal: list[e.Event] = []
        self.made: tuple[d.Decision, ...] = ()
        self.all_made: list[d.Decision] = []
        self._state: RunState | None = None

    @property
    def state(self) -> RunState:
        assert self._state is not None
        return self._state

    @property
    def attempt(self) -> int:
        return self.state.attempt

    def feed(self, event: e.Event) -> Journey:
        self._state, self.made = advance(self._state, event, self.policy)
        self.all_made += self.made
        self.journal.append(event)
        return self

    def asked(self) -> tuple[d.Decision, ...]:
        """The decisions of the last event that ask for something to be done."""
        return tuple(x for x in self.made if not isinstance(x, d.Notify))

    def told(self) -> str:
        return " | ".join(x.text for x in self.made if isinstance(x, d.Notify))

    def later(self, seconds: float = 10.0) -> float:
        self.at += seconds
        return self.at

    def submit(self, *, attached: bool = False, newest_attempt: int = 0, nodes: int = 2) -> Journey:
        return self.feed(e.RunSubmitted(self.at, "gpt", nodes, newest_attempt, attached))

    def start(self, *nodes: str) -> Journey:
        return self.feed(e.AttemptStarted(self.later(1.0), self.attempt, nodes or ("n1", "n2")))

    def restore(self, step: int | None = None, note: str = "") -> Journey:
        self.feed(e.RanksImported(self.later(1.0), self.attempt))
        return self.feed(e.AttemptRestored(self.later(1.0), self.attempt, step, note))

    def progress(self, step: int | None, position: int | None = None) -> Journey:
        return self.feed(e.ProgressSampled(self.later(), self.attempt, step, step if position is None else position))

    def commit(self, step: int, *, healthy: bool | None = None, position: int | None = None) -> Journey:
        kept = Checkpoint(step, self.attempt, step if position is None else position, healthy)
        return self.feed(e.CheckpointCommitted(self.later(0.0), self.attempt, kept))

    def rank_fails(self) -> Journey:
        at = self.later(1.0)
        return self.feed(e.RankFailed(at, self.attempt, 1, "n1", -9, at - 0.2))

    def hang(self, *suspects: str) -> Journey:
        at = self.later(30.0)
        return self.feed(e.HangFound(at, self.attempt, self.state.step, at - 30.0, "no step for 30 s", suspects))

    def spike(self, onset: int, *, position: int | None = None, kind: FailureKind = FailureKind.SPIKE) -> Journey:
        where = onset if position is None else position
        at = self.later(1.0)
        return self.feed(e.LossSpiked(at, self.attempt, kind, onset, where, where + 5, at - 5.0, "the loss jumped"))

    def end(self, *, succeeded: bool = False, exit_code: int | None = 1) -> Journey:
        return self.feed(e.AttemptEnded(self.later(1.0), self.attempt, succeeded, 0 if succeeded else exit_code))

    def diagnose(
        self, verdict: Verdict = CRASH, *, checkpoints: tuple[Checkpoint, ...] | None = None, newest_attempt: int = 0
    ) -> Journey:
        return self.feed(e.Diagnosed(self.later(1.0), self.attempt, verdict, checkpoints, newest_attempt))

    def probe(self, *faulty: str, undecided: tuple[str, ...] = ()) -> Journey:
        return self.feed(e.Probed(self.later(1.0), self.attempt, faulty, undecided))

    def order(self, kind: OrderKind, **given: object) -> Journey:
        return self.feed(e.OrderGiven(self.later(1.0), kind, "ada", **given))  # type: ignore[arg-type]

    def signal(self, name: str = "SIGTERM", grace_s: float | None = None) -> Journey:
        return self.feed(e.StopSignalled(self.later(1.0), name, grace_s))

    def deadline(self) -> Journey:
        self.at = max(self.at, self.state.deadline)
        return self.feed(e.TimePassed(self.at))

    def train(self, step: int = 100) -> Journey:
        """From LAUNCHING to TRAINING at `step`."""
        return self.start().restore(self.state.resume_step).progress(step)

    def crash(self, verdict: Verdict = CRASH, **known: object) -> Journey:
        """A rank dies, the rest is stopped, the cause is found."""
        return self.rank_fails().end().diagnose(verdict, **known)  # type: ignore[arg-type]


def begun(policy: Policy | None = None) -> Journey:
    return Journey(policy).submit()


def training(policy: Policy | None = None, step: int = 100) -> Journey:
    return begun(policy).train(step)


WITH_PROBE = Policy(can_probe=True, spare_nodes=1)
ADVISE = Policy(mode=Mode.ADVISE)
OBSERVE = Policy(mode=Mode.OBSERVE)

PLACES: dict[str, Callable[[], Journey]] = {
    "launch ordered": begun,
    "starting": lambda: begun().start(),
    "training": lambda: training().commit(80),
    "asks to stop": lambda: training(ADVISE).hang(),
    "only watching": lambda: training(OBSERVE).hang(),
    "attached": lambda: Journey().submit(attached=True).train(),
    "stops failure": lambda: training().commit(80).rank_fails(),
    "stops to leave": lambda: training().signal(),
    "stops to pause": lambda: training().order(OrderKind.PAUSE),
    "stops to relaunch": lambda: training().commit(80).order(OrderKind.ROLLBACK, step=80),
    "diagnosing": lambda: training().commit(80).rank_fails().end(),
    "probing": lambda: training(WITH_PROBE).commit(80).crash(SUSPECT),
    "waits to retry": lambda: training().crash().start().crash(STORAGE_AWAY),
    "waits for nodes": lambda: training().commit(80).crash(BAD_GPU),
    "paused": lambda: training().commit(80).order(OrderKind.PAUSE).end(succeeded=True),
    "asks to relaunch": lambda: training(ADVISE).commit(80).rank_fails().end().diagnose(),
    "cannot stop": lambda: training().commit(80).rank_fails().deadline(),
    "succeeded": lambda: training().end(succeeded=True),
    "abandoned": lambda: training().crash(SCRIPT_BUG),
    "left alive": lambda: training().rank_fails().deadline().signal(),
}
"""Every place that a run can stand in, told apart by what it would answer."""
LIVING = tuple(name for name in PLACES if name not in ("succeeded", "abandoned", "left alive"))


def happenings(journey: Journey) -> dict[str, e.Event]:
    """One event of every kind, and one order of each, that speaks of the journey's newest attempt."""
    at, attempt = journey.at + 1.0, journey.attempt
    step = (journey.state.step or 0) + 10
    return {
        "RunSubmitted": e.RunSubmitted(at, "gpt", 2),
        "ControllerReturned": e.ControllerReturned(at + 3600.0),
        "AttemptStarted": e.AttemptStarted(at, attempt, ("n1", "n2")),
        "LaunchFailed for now": e.LaunchFailed(at, attempt, "busy", False),
        "LaunchFailed for good": e.LaunchFailed(at, attempt, "no such program", True),
        "RanksImported": e.RanksImported(at, attempt),
        "AttemptRestored": e.AttemptRestored(at, attempt, 80),
        "ProgressSampled": e.ProgressSampled(at, attempt, step, step),
        "CheckpointCommitted": e.CheckpointCommitted(at, attempt, Checkpoint(step, attempt, step)),
        "RankFailed": e.RankFailed(at, attempt, 0, "n1", 1, at),
        "HangFound": e.HangFound(at, attempt, step, at, "no step"),
        "LossSpiked": e.LossSpiked(at, attempt, FailureKind.SPIKE, step, step, step, at, "jumped"),
        "AttemptEnded well": e.AttemptEnded(at, attempt, True, 0),
        "AttemptEnded badly": e.AttemptEnded(at, attempt, False, 1),
        "Diagnosed": e.Diagnosed(at, attempt, CRASH),
        "Probed": e.Probed(at, attempt, ()),
        "NodeCordoned": e.NodeCordoned(at, "n1"),
        "StopSignalled": e.StopSignalled(at, "SIGTERM"),
        "TimePassed early": e.TimePassed(at),
        "TimePassed deadline": e.TimePassed(max(at, min(journey.state.deadline, 1e12))),
        **{f"order {kind.value}": _order(at, kind) for kind in OrderKind},
    }


def _order(at: float, kind: OrderKind) -> e.OrderGiven:
    order = e.OrderGiven(at, kind, "ada")
    if kind is OrderKind.ROLLBACK:
        return replace(order, step=90)
    if kind is OrderKind.SKIP:
        return replace(order, first=100, last=110)
    if kind is OrderKind.REPLACE:
        return replace(order, node="n2")
    if kind is OrderKind.CORRECT:
        return replace(order, incident=1, reason="ECCError")
    return order
