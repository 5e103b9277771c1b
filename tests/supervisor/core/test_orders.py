# SPDX-License-Identifier: Apache-2.0
"""A person's orders and the signals to the supervisor itself: what holds for all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.policy import Policy
from supervisor.core.values import (
    Action,
    Category,
    Checkpoint,
    Mode,
    OrderKind,
    Phase,
    Verdict,
    WaitFor,
)
from tests.supervisor.core.journeys import (
    ADVISE,
    CRASH,
    LIVING,
    NOT_NAMED,
    PLACES,
    SPIKE,
    SUSPECT,
    WITH_PROBE,
    Journey,
    begun,
    training,
)

AT_80 = Checkpoint(80, 1, 80)
PAUSE = OrderKind.PAUSE
RESUME = OrderKind.RESUME
STOP = OrderKind.STOP
APPROVE = OrderKind.APPROVE
ROLLBACK = OrderKind.ROLLBACK
SKIP = OrderKind.SKIP
REPLACE = OrderKind.REPLACE
FREEZE = OrderKind.FREEZE
THAW = OrderKind.THAW
CORRECT = OrderKind.CORRECT


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129), ("SIGUSR1", 143)])
def test_exit_code_after_a_signal_is_the_shells(name: str, code: int) -> None:
    outcome = training().signal(name).end().state.outcome
    assert outcome is not None and (outcome.reason, outcome.exit_code) == ("ExternalStop", code)


def test_exit_code_after_an_order_to_stop_is_that_of_an_interrupt() -> None:
    outcome = training().order(STOP).end().state.outcome
    assert outcome is not None and outcome.exit_code == 130


@pytest.mark.parametrize("place", LIVING)
@pytest.mark.parametrize("kind", OrderKind)
def test_every_order_is_counted_and_told_in_every_place(place: str, kind: OrderKind) -> None:
    journey = PLACES[place]()
    before = journey.state.interventions
    journey.order(kind)
    assert journey.state.interventions == before + 1
    assert journey.told().startswith(f"ada ordered {kind.value}")


@pytest.mark.parametrize("place", LIVING)
@pytest.mark.parametrize(
    "order",
    [
        e.OrderGiven(5000.0, ROLLBACK, "ada", step=80),
        e.OrderGiven(5000.0, SKIP, "ada", first=90, last=95),
        e.OrderGiven(5000.0, REPLACE, "ada", node="n2"),
        e.OrderGiven(5000.0, PAUSE, "ada"),
        e.OrderGiven(5000.0, RESUME, "ada"),
    ],
    ids=lambda order: order.order.value,
)
def test_refused_order_changes_nothing_but_the_count(place: str, order: e.OrderGiven) -> None:
    journey = PLACES[place]()
    journey.policy = replace(journey.policy, spare_nodes=5)
    before = journey.state
    journey.feed(order)
    if "refused" in journey.told():
        assert journey.state == replace(before, interventions=before.interventions + 1)
    else:
        assert journey.state != replace(before, interventions=before.interventions + 1) or "already" in journey.told()


@pytest.mark.parametrize(("first", "last"), [(None, 5), (5, None), (-1, 5), (6, 5)])
def test_skip_refuses_what_is_no_range(first: int | None, last: int | None) -> None:
    journey = training().order(SKIP, first=first, last=last)
    assert "refused: cannot skip" in journey.told() and journey.state.skipped == ()


def test_freeze_and_thaw_hold_in_every_place() -> None:
    for name, make in PLACES.items():
        journey = make()
        if not journey.state.is_final:
            assert journey.order(FREEZE).state.frozen, name
            assert not journey.order(THAW).state.frozen, name


def test_freeze_leaves_a_stop_that_is_under_way() -> None:
    journey = training().rank_fails().order(FREEZE)
    assert journey.state.pending == d.Stop(1, 1, 5.0, False)


def test_resume_gives_budgets_and_rollbacks_anew() -> None:
    policy = Policy(ask_when_exhausted=True, most_rollbacks=1, rollback_margin_steps=0)
    journey = training(policy).commit(80).spike(100).end().diagnose(SPIKE).train(200).spike(200).end().diagnose(SPIKE)
    assert journey.state.waiting_for is WaitFor.PERSON
    journey.order(RESUME)
    state = journey.state
    assert (state.rollbacks, state.past, state.tries_without_progress) == (0, (), 0)
    assert journey.asked() == (d.Launch(3, resume=AT_80),)
    assert journey.train(300).spike(300).end().diagnose(SPIKE).state.phase is Phase.LAUNCHING


def test_pause_of_an_attached_launch_is_refused() -> None:
    journey = Journey().submit(attached=True).train().order(PAUSE)
    assert "only watched" in journey.told() and journey.asked() == ()


def test_order_while_waiting_keeps_the_attempt_number_that_the_store_asks_for() -> None:
    journey = training(ADVISE).commit(80).end().diagnose(newest_attempt=7).order(ROLLBACK, step=80)
    assert journey.asked() == (d.Launch(8, resume=AT_80),)


def test_probing_takes_orders_only_to_end_or_freeze() -> None:
    for kind in (PAUSE, RESUME, APPROVE, ROLLBACK, SKIP, REPLACE):
        journey = training(WITH_PROBE).commit(80).crash(SUSPECT)
        journey.order(kind, step=80, first=1, last=2, node="n1")
        assert journey.state.phase is Phase.PROBING and "refused" in journey.told()


def test_frozen_probe_result_isolates_nobody() -> None:
    journey = training(WITH_PROBE).commit(80).crash(SUSPECT).order(FREEZE).probe("n1")
    assert journey.asked() == () and journey.state.waiting_for is WaitFor.PERSON


def test_correcting_does_not_touch_the_open_failure() -> None:
    verdict = Verdict("Unknown", Category.OTHER, Action.RESTART_SAME)
    journey = begun().start().crash(verdict).order(CORRECT, incident=1, reason="ECCError")
    assert journey.state.failure is not None and journey.state.failure.verdict == verdict


def test_advice_is_given_up_when_the_attempt_ends_by_itself() -> None:
    journey = training(ADVISE).hang().end()
    assert journey.state.proposal is None and journey.order(APPROVE).state.phase is Phase.DIAGNOSING


def test_thawed_run_goes_on_by_itself_in_act_mode_only() -> None:
    advised = training(Policy(mode=Mode.ADVISE)).commit(80).order(FREEZE).end().diagnose(NOT_NAMED).order(THAW)
    assert advised.state.waiting_for is WaitFor.PERSON
    acting = training().commit(80).order(FREEZE).end().diagnose(CRASH).order(THAW)
    assert acting.state.phase is Phase.LAUNCHING
