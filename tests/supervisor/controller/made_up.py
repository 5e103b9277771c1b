# SPDX-License-Identifier: Apache-2.0
"""A made-up run for what a person sees: its journal comes from the real state machine, its losses from a formula."""

from __future__ import annotations

import math

from supervisor.controller.api import JournalRecord, LiveNumbers, RunView
from supervisor.controller.steps_file import StepLine
from supervisor.core import events as e
from supervisor.core.accounting import account
from supervisor.core.api import (
    Action,
    BatchRange,
    Category,
    Checkpoint,
    FailureKind,
    OrderKind,
    Policy,
    RunState,
    Verdict,
    advance,
)

BEGAN = 1_700_000_000.0
NODE = "node-1"


class Journal:
    """Feeds events to the state machine and keeps the records, as a controller does."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.records = [JournalRecord(BEGAN, policy=self.policy)]
        self.last: RunState | None = None

    @property
    def state(self) -> RunState:
        assert self.last is not None
        return self.last

    def hear(self, *happened: e.Event) -> None:
        for event in happened:
            self.last, decided = advance(self.last, event, self.policy)
            self.records.append(JournalRecord(event.at, event, decided))


class Training:
    """A run with its steps: what the agents would have reported is written down here."""

    def __init__(self, policy: Policy | None = None, step_s: float = 0.1) -> None:
        self.journal = Journal(policy)
        self.rows: list[StepLine] = []
        self.at = BEGAN
        self._step_s = step_s
        self._position = 0
        self.journal.hear(e.RunSubmitted(self.at, "gpt", nodes=1))

    @property
    def state(self) -> RunState:
        return self.journal.state

    def start(self, resume_step: int | None, position: int | None = None) -> None:
        attempt = self.state.attempt
        self._position = (resume_step or 0) if position is None else position
        self.journal.hear(
            e.AttemptStarted(self.at + 0.2, attempt, (NODE,)),
            e.RanksImported(self.at + 1.5, attempt),
            e.AttemptRestored(self.at + 1.8, attempt, resume_step),
        )
        self.at += 2.0

    def train(self, first: int, last: int, *, commits: int = 100, bump: tuple[int, float] | None = None) -> None:
        """Steps `first` to `last`; from step `bump[0]` on the loss is `bump[1]` times as high."""
        attempt = self.state.attempt
        for step in range(first, last + 1):
            self.at += self._step_s
            self._position += 1
            for span in self.state.skipped:
                if self._position == span.first:
                    self._position = span.last + 1
            loss = 1.5 + 3.0 * math.exp(-step / 300.0) + 0.06 * math.sin(step * 1.7) * math.cos(step * 0.31)
            if bump is not None and step >= bump[0]:
                loss *= 1.0 + (bump[1] - 1.0) * min(1.0, (step - bump[0] + 1) / 6.0)
            self.rows.append(StepLine(attempt, step, self._position, self.at, loss, 1.0, 4096))
            if step in (first, last) or step % 10 == 0:
                self.journal.hear(e.ProgressSampled(self.at, attempt, step, self._position))
            if step % commits == 0:
                kept = Checkpoint(step, attempt, self._position + 1, healthy=True)
                self.journal.hear(e.CheckpointCommitted(self.at + 0.05, attempt, kept))

    def end(self, verdict: Verdict, exit_code: int | None = 1) -> None:
        """The stopped attempt ends, and its cause is found."""
        attempt = self.state.attempt
        self.journal.hear(
            e.AttemptEnded(self.at + 0.3, attempt, succeeded=False, exit_code=exit_code),
            e.Diagnosed(self.at + 0.5, attempt, verdict, self.state.checkpoints),
        )
        self.at += 0.6


KILLED = Verdict(
    reason="NodeFailure",
    category=Category.INFRASTRUCTURE,
    action=Action.RESTART_SAME,
    explanation="rank 1 was killed by signal 9 and the others aborted",
    suggestion="see whether the machine ran out of memory",
    confidence=0.8,
    decided_by="signature:killed",
    suspects=(NODE,),
    rank=1,
)
SPIKED = Verdict(
    reason="LossSpike",
    category=Category.OTHER,
    action=Action.ROLLBACK,
    explanation="the loss is 2.6 times its usual level",
    suggestion="look at the batches named in the story",
    confidence=1.0,
    decided_by="loss",
)
HUNG = Verdict(
    reason="SilentHang",
    category=Category.OTHER,
    action=Action.RESTART_SAME,
    explanation="rank 0 stood still in an all-reduce",
    suggestion="look at the stacks",
    confidence=0.5,
    decided_by="stacks",
)


def eventful() -> Training:
    """A killed rank, a hang, a spike that comes back and is left out, an order of a person, and the end."""
    run = Training()
    run.start(None)
    run.train(1, 260)
    run.at += 0.2
    run.journal.hear(e.RankFailed(run.at, 1, 1, NODE, -9, run.at - 0.2))
    run.end(KILLED, exit_code=-9)
    run.start(200)
    run.train(201, 470)
    run.at += 4.0
    run.journal.hear(e.HangFound(run.at, 2, 470, run.at - 4.0, "no step for 4.0 s, allowed are 3.0 s", (NODE,)))
    run.end(HUNG)
    run.start(400)
    for attempt in (3, 4):
        first = 401 if attempt == 3 else 501
        run.train(first, 655, bump=(640, 2.6))
        run.journal.hear(
            e.LossSpiked(
                run.at, attempt, FailureKind.SPIKE, 640, 640, 655, run.at - 1.6, "the loss is 2.6 times as high"
            )
        )
        run.end(SPIKED)
        run.start(500)
    run.train(501, 800)
    run.journal.hear(e.OrderGiven(run.at, OrderKind.FREEZE, "ann@login", "looking at the switch"))
    run.journal.hear(e.OrderGiven(run.at + 3, OrderKind.THAW, "ann@login"))
    run.at += 3
    run.train(801, 1200)
    run.journal.hear(e.AttemptEnded(run.at + 0.4, 5, succeeded=True, exit_code=0))
    return run


def view(run: Training, numbers: LiveNumbers | None = None) -> RunView:
    """What the controller would show now."""
    told = account(run.journal.records, run.at)
    return RunView(
        at=run.at,
        state=run.state,
        numbers=numbers or LiveNumbers(loss=2.3456, tokens_per_s=40_960.0, step_s=0.1),
        ettr=told.ettr,
        mttr_s=told.mttr_s,
        incidents=len(told.incidents),
        interventions=told.interventions,
        controller="pid 7 on login",
        folder="/runs/gpt",
    )


SKIPPED = BatchRange(640, 839)
"""What the spike of `eventful` costs by the default policy."""
