# SPDX-License-Identifier: Apache-2.0
"""What must hold after every event, checked against a second, simpler memory of what was told and decided."""

from __future__ import annotations

import math

from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.policy import Policy
from supervisor.core.state import RunState, outstanding
from supervisor.core.values import LIVE_PHASES, BatchRange, Category, Checkpoint, Phase, WaitFor
from tests.supervisor.core.world import BY_PERSON, World

PENDING_OF: dict[Phase, tuple[type, ...]] = {
    Phase.LAUNCHING: (type(None), d.Launch),
    Phase.TRAINING: (type(None),),
    Phase.STOPPING: (d.Stop, d.Finish),
    Phase.DIAGNOSING: (d.Diagnose,),
    Phase.PROBING: (d.Probe,),
    Phase.WAITING: (type(None),),
    Phase.SUCCEEDED: (type(None),),
    Phase.ABANDONED: (type(None),),
}
ACTING = (d.Launch, d.Stop, d.Finish, d.Cordon)


class Memory:
    """Watches a world; each method is one promise."""

    def __init__(self, world: World) -> None:
        self.may_be_alive = {1}
        self.largest = 1
        self.visible: dict[tuple[int, int], bool] = {}
        """Checkpoints that may be resumed from; False once one was told to be unhealthy."""
        self.failures: list[tuple[float, Category]] = []
        self.orders = 0
        self.attached = world.state.attached

    def watch(self, before: RunState, event: e.Event, world: World) -> None:
        after, made = world.state, world.made
        self.old_attempt_changes_nothing(before, event, after, made)
        self.every_end_is_answered(before, event, after)
        self.deadlines_are_finite_and_answered(before, event, after, made)
        self.pending_fits_the_phase(after, made)
        self.remember(before, event, world.policy)
        for decision in made:
            if isinstance(decision, d.Launch):
                self.one_attempt_at_a_time(decision, after)
                self.resumes_from_what_may_be_resumed_from(decision)
                self.launch_says_what_the_state_knows(decision, after)
                self.budgets_are_kept(before, event, world.policy)
                self.no_verdict_throws_a_run_away(before, event, decision, world.policy)
        self.skips_grow_and_exclusions_stay(before, event, after)
        self.a_freeze_holds(before, event, made)
        self.the_absent_decide_nothing(event, made)
        self.attached_launches_are_left_alone(before, event, made)
        assert after.interventions == self.orders
        assert before.incident <= after.incident <= before.incident + 1

    def old_attempt_changes_nothing(
        self, before: RunState, event: e.Event, after: RunState, made: tuple[d.Decision, ...]
    ) -> None:
        if getattr(event, "attempt", before.attempt) != before.attempt:
            assert (after, made) == (before, ())
        if before.is_final and not isinstance(event, e.RunSubmitted):
            assert (after, made) == (before, ())

    def every_end_is_answered(self, before: RunState, event: e.Event, after: RunState) -> None:
        may_end = before.phase in LIVE_PHASES or before.waiting_for is WaitFor.ENDING
        if isinstance(event, e.AttemptEnded) and event.attempt == before.attempt and may_end:
            assert after.attempt > before.attempt or after.phase not in LIVE_PHASES
            assert after.waiting_for is not WaitFor.ENDING

    def deadlines_are_finite_and_answered(
        self, before: RunState, event: e.Event, after: RunState, made: tuple[d.Decision, ...]
    ) -> None:
        assert math.isfinite(after.deadline) is not after.is_final
        if isinstance(event, e.TimePassed) and event.at >= before.deadline:
            assert made
            assert after.phase is not before.phase or after.deadline > before.deadline

    def pending_fits_the_phase(self, after: RunState, made: tuple[d.Decision, ...]) -> None:
        if after.waiting_for is WaitFor.ENDING:
            assert isinstance(after.pending, d.Stop)
        else:
            assert isinstance(after.pending, PENDING_OF[after.phase])
        assert (after.waiting_for is not None) is (after.phase is Phase.WAITING)
        asked = [x for x in made if isinstance(x, (d.Launch, d.Stop, d.Finish, d.Diagnose, d.Probe))]
        assert asked in ([], [after.pending])
        assert all(x.attempt == after.attempt for x in asked)
        kept = [x for x in made if isinstance(x, d.KeepEvidence)]
        assert kept in ([], [d.KeepEvidence(after.attempt, after.incident)])
        assert not kept or (after.phase in LIVE_PHASES and not isinstance(after.pending, d.Stop))
        assert [x for x in made if isinstance(x, d.Release)] == ([d.Release()] if after.is_final and made else [])
        pending = () if after.pending is None else (after.pending,)
        assert outstanding(after) == (*pending, *after.uncordoned)
        assert all(x in after.uncordoned for x in made if isinstance(x, d.Cordon))

    def one_attempt_at_a_time(self, launch: d.Launch, after: RunState) -> None:
        assert launch.attempt > self.largest
        assert not self.may_be_alive or self.attached
        self.largest = launch.attempt
        self.may_be_alive = {launch.attempt}

    def resumes_from_what_may_be_resumed_from(self, launch: d.Launch) -> None:
        if launch.resume is not None:
            assert not launch.from_nothing
            assert self.visible.get((launch.resume.step, launch.resume.attempt)) is True
        if launch.resume is not None or launch.from_nothing:
            newest = -1 if launch.resume is None else launch.resume.step
            self.visible = {key: ok for key, ok in self.visible.items() if key[0] <= newest or not ok}

    def no_verdict_throws_a_run_away(self, before: RunState, event: e.Event, launch: d.Launch, policy: Policy) -> None:
        if isinstance(event, e.Diagnosed) and _has_much_to_lose(before, policy):
            assert not launch.from_nothing

    def launch_says_what_the_state_knows(self, launch: d.Launch, after: RunState) -> None:
        assert (launch.skipped, launch.excluded) == (after.skipped, after.excluded)
        assert launch.environment == after.environment

    def budgets_are_kept(self, before: RunState, event: e.Event, policy: Policy) -> None:
        by_person = isinstance(event, BY_PERSON) or before.after_stop is not None
        if by_person or not self.failures:
            return
        at, category = self.failures[-1]
        budget = policy.budget(category)
        assert sum(c is category and t > at - budget.window_s for t, c in self.failures) <= budget.count

    def skips_grow_and_exclusions_stay(self, before: RunState, event: e.Event, after: RunState) -> None:
        assert all(_covers(after.skipped, span) for span in before.skipped)
        assert list(after.skipped) == sorted(after.skipped)
        assert len(set(after.excluded)) == len(after.excluded)
        if not isinstance(event, BY_PERSON):
            assert set(before.excluded) <= set(after.excluded)

    def a_freeze_holds(self, before: RunState, event: e.Event, made: tuple[d.Decision, ...]) -> None:
        under_way = before.phase is Phase.STOPPING or before.after_stop is not None
        if before.frozen and not under_way and not isinstance(event, BY_PERSON):
            assert not [x for x in made if isinstance(x, ACTING)]

    def the_absent_decide_nothing(self, event: e.Event, made: tuple[d.Decision, ...]) -> None:
        if isinstance(event, e.ControllerReturned):
            assert made == ()

    def attached_launches_are_left_alone(self, before: RunState, event: e.Event, made: tuple[d.Decision, ...]) -> None:
        if before.attached and not isinstance(event, e.RunSubmitted):
            assert not [x for x in made if isinstance(x, (*ACTING, d.Probe))]

    def remember(self, before: RunState, event: e.Event, policy: Policy) -> None:
        if before.is_final:
            if isinstance(event, e.RunSubmitted):
                self.failures = []
            return
        if getattr(event, "attempt", before.attempt) != before.attempt:
            return
        match event:
            case e.AttemptEnded():
                self.may_be_alive.discard(event.attempt)
            case e.LaunchFailed(permanent=True) if isinstance(before.pending, d.Launch):
                self.may_be_alive.discard(event.attempt)
            case e.CheckpointCommitted():
                self._tell(event.checkpoint)
            case e.Diagnosed() if before.phase is Phase.DIAGNOSING:
                self.failures.append((event.at, event.verdict.category))
                self._list(event.checkpoints, before, policy)
            case e.TimePassed() if before.phase is Phase.DIAGNOSING and event.at >= before.deadline:
                self.failures.append((event.at, Category.OTHER))
            case e.OrderGiven():
                self.orders += 1
                if event.order.value == "resume" and before.waiting_for not in (None, WaitFor.ENDING):
                    self.failures = []
            case _:
                pass

    def _tell(self, told: Checkpoint) -> None:
        key = (told.step, told.attempt)
        self.visible[key] = self.visible.get(key, True) and told.healthy is not False

    def _list(self, listed: tuple[Checkpoint, ...] | None, before: RunState, policy: Policy) -> None:
        """An empty list is not believed of a run that has come far: its file system may be away."""
        if listed or (listed is not None and not _has_much_to_lose(before, policy)):
            keys = [(c.step, c.attempt) for c in listed]
            self.visible = {key: self.visible.get(key, True) for key in keys}


def _has_much_to_lose(state: RunState, policy: Policy) -> bool:
    reached = max(state.step or 0, state.newest_step or 0)
    return bool(state.checkpoints) and reached > policy.rollback_margin_steps


def _covers(spans: tuple[BatchRange, ...], span: BatchRange) -> bool:
    return any(s.first <= span.first and span.last <= s.last for s in spans)
