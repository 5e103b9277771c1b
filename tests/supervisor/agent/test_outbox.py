# SPDX-License-Identifier: Apache-2.0
"""Reports wait until they are acknowledged; only what can be spared is thinned."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.agent.api import (
    AttemptEnded,
    CheckpointFact,
    RanksPolled,
    Report,
    ReportBatch,
    StepRow,
    StepsSeen,
    decode_report,
)
from supervisor.agent.outbox import MAX_WAITING_ROWS, Outbox, thinned


def row(step: int, loss: float = 1.0) -> StepRow:
    return StepRow(step, step, 0.0, loss, None, 1)


def steps(*numbers: int) -> StepsSeen:
    return StepsSeen(1, 0.0, "client", tuple(map(row, numbers)))


def fact(step: int) -> CheckpointFact:
    return CheckpointFact(1, 0.0, {"step": step})


def sent(outbox: Outbox) -> ReportBatch:
    outbox.flush()
    batch = outbox.next_batch(0.0)
    assert batch is not None
    return batch


def kinds(batch: ReportBatch) -> list[str]:
    return [type(report).__name__ for report in map(decode_report, batch.reports)]


def test_nothing_is_sent_before_a_flush() -> None:
    outbox = Outbox("n0", "a")
    outbox.add(fact(1))
    assert outbox.next_batch(0.0) is None
    assert kinds(sent(outbox)) == ["CheckpointFact"]


def test_a_flush_without_reports_is_a_sign_of_life() -> None:
    outbox = Outbox("n0", "a")
    outbox.stand(4, is_alive=False)
    batch = sent(outbox)
    assert (batch.node, batch.agent, batch.sequence, batch.attempt, batch.attempt_alive) == ("n0", "a", 1, 4, False)
    assert batch.reports == ()


def test_an_unacknowledged_batch_is_given_again_unchanged() -> None:
    outbox = Outbox("n0", "a")
    outbox.add(fact(1))
    first = sent(outbox)
    outbox.add(fact(2))
    assert sent(outbox) is first
    assert outbox.acknowledge(first.sequence + 1) == ()
    assert sent(outbox) is first
    assert outbox.acknowledge(first.sequence) == (fact(1),)
    second = sent(outbox)
    assert second.sequence == first.sequence + 1 and [report["fact"] for report in second.reports] == [{"step": 2}]


def test_only_the_newest_state_of_the_ranks_waits() -> None:
    outbox = Outbox("n0", "a")
    for at in (1.0, 2.0):
        outbox.add(RanksPolled(1, at, ()))
        outbox.add(fact(int(at)))
    reports = [decode_report(raw) for raw in sent(outbox).reports]
    assert reports == [fact(1), RanksPolled(1, 2.0, ()), fact(2)]


def test_steps_that_wait_together_are_one_report() -> None:
    outbox = Outbox("n0", "a")
    outbox.add(steps(1, 2))
    outbox.add(steps(3))
    (report,) = sent(outbox).reports
    assert [each["step"] for each in report["rows"]] == [1, 2, 3]


def test_the_wait_for_an_empty_outbox_ends_by_acknowledgement() -> None:
    outbox = Outbox("n0", "a")
    outbox.add(fact(1))
    assert not outbox.wait_until_empty(0.0)
    outbox.acknowledge(sent(outbox).sequence)
    assert outbox.wait_until_empty(0.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["steps", "fact", "end", "ranks"]), min_size=1, max_size=60))
def test_facts_and_ends_are_never_dropped_however_long_the_controller_is_away(order: list[str]) -> None:
    outbox = Outbox("n0", "a")
    kept: list[Report] = []
    step = 0
    for what in order:
        if what == "steps":
            outbox.add(StepsSeen(1, 0.0, "client", tuple(row(step + each) for each in range(700))))
            step += 700
        elif what == "ranks":
            outbox.add(RanksPolled(1, 0.0, ()))
        else:
            kept.append(fact(step) if what == "fact" else AttemptEnded(1, float(step), 0, (), by_us=False))
            outbox.add(kept[-1])
    sent(outbox)
    told = outbox.acknowledge(1)
    assert [report for report in told if isinstance(report, (CheckpointFact, AttemptEnded))] == kept
    rows = [each.step for report in told if isinstance(report, StepsSeen) for each in report.rows]
    assert len(rows) <= MAX_WAITING_ROWS and rows == sorted(rows)
    assert not step or rows[-1] == step - 1
    assert len(rows) + outbox.thinned == step


@given(st.lists(st.sampled_from([1.0, math.nan, math.inf]), max_size=40), st.integers(0, 40))
def test_thinning_keeps_the_newest_rows_and_every_loss_that_is_not_a_number(losses: list[float], spared: int) -> None:
    rows = tuple(row(step, loss) for step, loss in enumerate(losses))
    kept = [each.step for each in thinned(rows, spared)]
    assert set(range(max(0, len(rows) - spared), len(rows))) <= set(kept)
    assert {step for step, loss in enumerate(losses) if not math.isfinite(loss)} <= set(kept)
    assert kept == sorted(kept)
