# SPDX-License-Identifier: Apache-2.0
"""What the reports of agents mean to the core."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from supervisor.agent import api as agent
from supervisor.controller.monitor import Monitor
from supervisor.controller.seen import HealthChanged, Noticed, Told, UriLearned
from supervisor.core.api import FailureKind, Phase, RunState, Severity, events
from supervisor.detection.api import HangPolicy

NOW = 1000.0


def monitor(nodes: int = 1) -> Monitor:
    return Monitor(HangPolicy(floor_s=3.0), nodes)


def state(phase: Phase = Phase.TRAINING) -> RunState:
    return RunState("demo", phase, 1, math.inf, NOW)


def row(step: int, at: float, loss: float | None = 2.0, tokens: int = 100) -> agent.StepRow:
    return agent.StepRow(step, step - 1, at, loss, 1.0, tokens)


def status(rank: int, step: int | None, idle_s: float, process_state: str = "S", **more: object) -> agent.RankStatus:
    given: dict[str, object] = {"phase": None, "phase_s": 0.0, "alive": True, "instrumented": True, **more}
    return agent.RankStatus(rank, rank, 100 + rank, step, idle_s, process_state=process_state, dropped=0, **given)  # type: ignore[arg-type]


def trained(watch: Monitor, steps: int, *, step_s: float = 0.1) -> float:
    """Feed an ordinary attempt of two ranks, a poll a second; the time at its end."""
    watch.take("node-0", agent.AttemptBegan(1, NOW, 99, False), NOW)
    at = NOW
    for step in range(1, steps + 1):
        at = NOW + step * step_s
        watch.take("node-0", agent.StepsSeen(1, at, "client", (row(step, at),)), at)
        if step % max(1, round(1 / step_s)) == 0:
            watch.take("node-0", agent.RanksPolled(1, at, (status(0, step, 0.0), status(1, step, 0.0))), at)
            assert watch.poll(state(), at) in ([], [HealthChanged(True)])
    return at


def kinds(noticed: Iterable[Noticed]) -> list[str]:
    return [type(each).__name__ for each in noticed]


def test_an_attempt_has_started_when_every_node_says_so() -> None:
    watch = monitor(nodes=2)
    assert kinds(watch.take("node-0", agent.AttemptBegan(1, NOW, 9, False, ("py-spy is missing",)), NOW)) == ["Told"]
    assert watch.take("node-1", agent.AttemptBegan(1, NOW + 1, 9, False), NOW + 1) == [
        events.AttemptStarted(NOW + 1, 1, ("node-0", "node-1"))
    ]


def test_what_an_agent_remarks_of_its_node_is_told_once_whatever_attempt_runs() -> None:
    watch = monitor()
    watch.take("node-0", agent.AttemptBegan(4, NOW, 9, False), NOW)
    remark = agent.Remark(0, NOW, "attempt.json is damaged")
    assert watch.take("node-0", remark, NOW) == [Told(Severity.WARNING, "node-0: attempt.json is damaged")]
    assert watch.take("node-0", remark, NOW + 1) == []
    assert kinds(watch.take("node-0", agent.StepsSeen(4, NOW, "client", (row(1, NOW),)), NOW)) == ["ProgressSampled"]


def test_the_first_step_is_told_at_once_and_later_ones_seldom() -> None:
    watch = monitor()
    told = []
    for step in range(1, 301):
        at = NOW + step * 0.1
        told += watch.take("node-0", agent.StepsSeen(1, at, "client", (row(step, at),)), at)
    samples = [each for each in told if isinstance(each, events.ProgressSampled)]
    assert samples[0] == events.ProgressSampled(NOW + 0.1, 1, 1, 1)
    assert len(samples) <= 5


def test_the_last_step_is_told_right_before_a_failure() -> None:
    watch = monitor()
    at = trained(watch, 55)
    exited = agent.RankExited(1, at, agent.RankExit(1, 1, 4, -9, at))
    assert watch.take("node-0", exited, at + 0.1) == [
        events.ProgressSampled(at, 1, 55, 55),
        events.RankFailed(at + 0.1, 1, 1, "node-0", -9, at),
    ]


def test_ranks_that_finished_or_that_we_stopped_did_not_fail() -> None:
    watch = monitor()
    for ended in (
        agent.RankExit(0, 0, 4, 0, NOW),
        agent.RankExit(1, 1, 5, -6, NOW, finished=True),
        agent.RankExit(2, 2, 6, -15, NOW, by_us=True),
        agent.RankExit(3, 3, 7, None, NOW),
    ):
        assert watch.take("node-0", agent.RankExited(1, NOW, ended), NOW) == []


def test_an_abort_after_the_clean_end_of_every_rank_is_success() -> None:
    ranks = (agent.RankExit(0, 0, 4, 0, NOW, finished=True), agent.RankExit(1, 1, 5, -6, NOW, finished=True))
    told, ended = monitor().take("node-0", agent.AttemptEnded(1, NOW, 1, ranks, by_us=False), NOW)
    assert isinstance(told, Told)
    assert isinstance(ended, events.AttemptEnded)
    assert ended.succeeded


def test_an_attempt_ends_with_its_last_node() -> None:
    watch = monitor(nodes=2)
    assert watch.take("node-0", agent.AttemptEnded(1, NOW, 0, (), by_us=False), NOW) == []
    (ended,) = watch.take("node-1", agent.AttemptEnded(1, NOW, 3, (), by_us=False), NOW)
    assert isinstance(ended, events.AttemptEnded)
    assert (ended.succeeded, ended.exit_code) == (False, 3)


def test_a_stop_by_us_is_no_success_even_with_exit_code_zero() -> None:
    (ended,) = monitor().take("node-0", agent.AttemptEnded(1, NOW, 0, (), by_us=True), NOW)
    assert isinstance(ended, events.AttemptEnded)
    assert not ended.succeeded


def test_a_hang_is_found_once_with_its_last_step() -> None:
    watch = monitor()
    at = trained(watch, 400)
    found: list[Noticed] = []
    for second in range(1, 12):
        report = agent.RanksPolled(1, at + second, (status(0, 400, second), status(1, 400, second, "T")))
        watch.take("node-0", report, at + second)
        found += watch.poll(state(), at + second)
    hangs = [each for each in found if isinstance(each, events.HangFound)]
    assert len(hangs) == 1
    assert hangs[0].step == 400
    assert hangs[0].suspects == ("node-0",)
    assert hangs[0].at - at <= 5.0
    assert events.ProgressSampled(at, 1, 400, 400) in found


def test_an_evaluation_is_no_hang_and_the_core_hears_that_all_is_well() -> None:
    watch = monitor()
    at = trained(watch, 400)
    noticed: list[Noticed] = []
    for second in range(1, 200):
        ranks = tuple(status(rank, 400, 0.0, phase="evaluation", phase_s=float(second)) for rank in (0, 1))
        watch.take("node-0", agent.RanksPolled(1, at + second, ranks), at + second)
        noticed += watch.poll(state(), at + second)
    assert set(kinds(noticed)) == {"ProgressSampled"}
    assert 2 <= len(noticed) <= 4
    assert watch.numbers().pause == "evaluation"


def test_a_silent_script_counts_as_training_after_a_while() -> None:
    watch = monitor()
    watch.take("node-0", agent.AttemptBegan(1, NOW, 99, False), NOW)
    watch.take("node-0", agent.RanksPolled(1, NOW, (status(0, None, 1.0, instrumented=False),)), NOW)
    assert watch.poll(state(Phase.LAUNCHING), NOW + 25) == []
    watch.take("node-0", agent.RanksPolled(1, NOW + 30, (status(0, None, 1.0, instrumented=False),)), NOW + 30)
    assert watch.poll(state(Phase.LAUNCHING), NOW + 31) == [events.ProgressSampled(NOW + 31, 1, None)]


def test_a_script_that_has_reported_steps_is_waited_for_in_its_next_attempt() -> None:
    watch = monitor()
    watch.take("node-0", agent.AttemptBegan(1, NOW, 99, False), NOW)
    watch.take("node-0", agent.RanksPolled(1, NOW + 30, (status(0, None, 1.0, instrumented=False),)), NOW + 30)
    assert watch.poll(replace(state(Phase.LAUNCHING), newest_step=7), NOW + 31) == []
    assert watch.poll(state(Phase.LAUNCHING), NOW + 31) != []


def test_nan_is_a_loss_event_at_once_and_changes_the_health() -> None:
    watch = monitor()
    at = trained(watch, 100) + 0.1
    noticed = watch.take("node-0", agent.StepsSeen(1, at, "client", (row(101, at, math.nan),)), at)
    assert HealthChanged(False) in noticed
    (spiked,) = (each for each in noticed if isinstance(each, events.LossSpiked))
    assert (spiked.kind, spiked.onset_step, spiked.onset_position) == (FailureKind.NAN, 101, 100)


def test_steps_that_arrive_twice_count_once() -> None:
    watch = monitor()
    at = trained(watch, 100)
    again = tuple(row(step, NOW + step * 0.1, math.nan) for step in range(90, 101))
    assert watch.take("node-0", agent.StepsSeen(1, at, "client", again), at) == []


def test_reports_of_an_older_attempt_mean_nothing() -> None:
    watch = monitor()
    watch.take("node-0", agent.AttemptBegan(2, NOW, 9, False), NOW)
    assert watch.take("node-0", agent.RankExited(1, NOW, agent.RankExit(0, 0, 4, -9, NOW)), NOW) == []


def test_checkpoint_facts_become_events_and_complaints() -> None:
    watch = monitor()

    def fact(**line: object) -> list[Noticed]:
        return watch.take("node-0", agent.CheckpointFact(1, NOW, dict(line)), NOW)

    assert fact(event="opened", uri="/ckpt") == [UriLearned("/ckpt")]
    (committed,) = fact(event="committed", step=50, checkpoint_attempt=1, position=50, healthy=True, at=NOW)
    assert isinstance(committed, events.CheckpointCommitted)
    assert committed.checkpoint.healthy is True
    damaged = [{"step": 80, "attempt": 1, "why": "bad checksum"}]
    (restored,) = fact(event="restored", rank=0, step=50, set_aside=damaged, at=NOW)
    assert isinstance(restored, events.AttemptRestored)
    assert "step 80 is damaged (bad checksum)" in restored.note
    (told,) = fact(event="save_failed", step=90, message="No space left on device")
    assert isinstance(told, Told)
    assert "No space left" in told.text
    assert fact(event="from the future") == []


def test_the_live_numbers_follow_the_steps() -> None:
    watch = monitor()
    trained(watch, 100)
    numbers = watch.numbers()
    assert numbers.step == 100
    assert numbers.step_s is not None
    assert math.isclose(numbers.step_s, 0.1, rel_tol=0.01)
    assert numbers.tokens_per_s is not None
    assert math.isclose(numbers.tokens_per_s, 2000.0, rel_tol=0.05)


def test_what_agents_said_long_ago_does_not_make_an_attempt_well() -> None:
    watch = monitor()
    at = trained(watch, 400)
    ranks = tuple(status(rank, 400, 0.0, phase="evaluation", phase_s=1.0) for rank in (0, 1))
    watch.take("node-0", agent.RanksPolled(1, at, ranks), at)
    silent = [each for second in range(1, 600) for each in watch.poll(state(), at + second)]
    assert silent == []


def test_the_end_told_by_a_node_that_had_no_part_in_it_ends_no_attempt() -> None:
    watch = monitor()
    watch.take("node-0", agent.AttemptBegan(1, NOW, 99, False), NOW)
    assert watch.take("node-1", agent.AttemptEnded(1, NOW, None, (), by_us=True), NOW) == []
    assert kinds(watch.take("node-0", agent.AttemptEnded(1, NOW, 0, (), by_us=False), NOW)) == ["AttemptEnded"]


def test_rows_that_an_agent_tells_again_are_not_fresh() -> None:
    watch = monitor()
    at = trained(watch, 100)
    again = agent.StepsSeen(1, at, "client", (row(99, at), row(100, at), row(101, at + 0.1)))
    assert [each.step for each in watch.fresh_rows(again)] == [101]
    assert [each.step for each in watch.fresh_rows(agent.StepsSeen(2, at, "client", (row(5, at),)))] == [5]


def test_a_restore_that_an_agent_tells_again_changes_nothing() -> None:
    watch = monitor()
    fact = agent.CheckpointFact(1, NOW, {"event": "restored", "rank": 0, "step": 50, "at": NOW})
    assert kinds(watch.take("node-0", fact, NOW)) == ["AttemptRestored"]
    assert watch.take("node-0", fact, NOW) == []
