# SPDX-License-Identifier: Apache-2.0
"""From the agents' reports to the core's events: the detectors live here, between many small facts and few that matter.

No clock and no I/O: times come with the reports and the polls. The core hears of a step once in a while, and always
right before a failure, so that the journal stays small and still tells how far an attempt came.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.agent import api as agent
from supervisor.controller import checkpoint_facts
from supervisor.controller.api import LiveNumbers
from supervisor.controller.ending import Ending
from supervisor.controller.seen import AttemptSeen, HealthChanged, Noticed, Told, UriLearned
from supervisor.controller.throughput import Throughput
from supervisor.core.api import FailureKind, Phase, RunState, Severity, events
from supervisor.detection import api as detection

SAMPLE_S = 10.0
"""A step is told to the core at most so often, apart from the first and the one before a failure."""
WELL_S = 60.0
"""Without a new step (a long evaluation) the core is told so often that the attempt is well."""
FRESH_S = 30.0
"""What an agent said longer ago tells nothing of how its ranks are now."""
SETTLED_S = 30.0
"""A script that reports no steps counts as training once it has lived so long; imports may well take as long."""


class Monitor:
    """Fed by one thread; `nodes` is how many agents an attempt has."""

    def __init__(self, policy: detection.HangPolicy, nodes: int) -> None:
        self._nodes = nodes
        self._hang = detection.HangState(policy)
        self._spike = detection.SpikeState()
        self._seen = AttemptSeen(0)
        self._health: bool | None = None
        self._throughput = Throughput()
        self._stall_s: float | None = None
        self._notes_told: set[str] = set()
        """What an agent remarks at each start is told once."""

    @property
    def ending(self) -> Ending:
        """How the newest attempt ended, as far as it has."""
        seen = self._seen
        codes = [end.exit_code for end in seen.ended.values() if end.exit_code and not end.by_us]
        size = len({*seen.ranks, *seen.exits})
        return Ending(tuple(seen.exits.values()), size or None, codes[0] if codes else None)

    def fresh_rows(self, report: agent.StepsSeen) -> tuple[agent.StepRow, ...]:
        """The rows of a report that were not seen before: an agent started anew reads its ranks' rings again."""
        seen = self._seen
        if report.attempt != seen.attempt:
            return report.rows if report.attempt > seen.attempt else ()
        newest = seen.sampled_step if seen.last is None else seen.last.step
        return tuple(row for row in report.rows if newest is None or row.step > newest)

    def warm(self, losses: Iterator[detection.LossSample]) -> None:
        """Give the loss detector back what an earlier controller had seen."""
        self._spike = detection.warm(self._spike, losses)

    def adopt(self, attempt: int, step: int | None, nodes: tuple[str, ...], at: float) -> None:
        """Go on with an attempt that an earlier controller launched on `nodes`, none while it has not begun."""
        self._seen = AttemptSeen(attempt, began_at=at, begun=set(nodes), sampled_step=step, sampled_at=at)

    def take(self, node: str, report: agent.Report, at: float) -> list[Noticed]:
        """What a report means; one of an older attempt means nothing."""
        if isinstance(report, agent.Remark):
            return list(self._told_once(Severity.WARNING, f"{node}: {report.text}"))
        if report.attempt < self._seen.attempt:
            return []
        if report.attempt > self._seen.attempt:
            self._begin(report.attempt)
        return list(self._take(node, report, at))

    def _begin(self, attempt: int) -> None:
        self._seen = AttemptSeen(attempt)
        self._hang = detection.relaunched(self._hang)
        self._health = None
        self._throughput = Throughput()

    def _take(self, node: str, report: agent.Report, at: float) -> Iterator[Noticed]:
        match report:
            case agent.AttemptBegan():
                yield from self._on_began(node, report, at)
            case agent.LaunchRefused():
                yield from self._on_refused(node, report, at)
            case agent.StepsSeen():
                yield from self._on_steps(node, report, at)
            case agent.RanksPolled():
                yield from self._on_ranks(node, report, at)
            case agent.RankExited():
                yield from self._on_rank_exited(node, report, at)
            case agent.AttemptEnded():
                yield from self._on_ended(node, report, at)
            case agent.CheckpointFact():
                yield from self._on_checkpoint(report, at)
            case agent.EvidenceKept():
                text = f"evidence of incident {report.incident}: {len(report.files)} files"
                yield Told(Severity.NOTE, "; ".join((text, *report.notes)))

    def _on_began(self, node: str, report: agent.AttemptBegan, at: float) -> Iterator[Noticed]:
        seen = self._seen
        seen.begun.add(node)
        seen.began_at = at if seen.began_at is None else seen.began_at
        for text in report.notes:
            yield from self._told_once(Severity.NOTE, text)
        if len(seen.begun) == self._nodes:
            yield events.AttemptStarted(report.at, report.attempt, tuple(sorted(seen.begun)))

    def _told_once(self, severity: Severity, text: str) -> Iterator[Noticed]:
        if text not in self._notes_told:
            self._notes_told.add(text)
            yield Told(severity, text)

    def _on_refused(self, node: str, report: agent.LaunchRefused, at: float) -> Iterator[Noticed]:
        """Told once; the controller repeats its order until the start-up deadline."""
        if report.permanent:
            yield events.LaunchFailed(at, report.attempt, f"{node}: {report.message}", permanent=True)
        elif self._seen.refusal != report.message:
            self._seen.refusal = report.message
            yield Told(Severity.WARNING, f"attempt {report.attempt} cannot start yet: {node}: {report.message}")

    def _on_steps(self, node: str, report: agent.StepsSeen, at: float) -> Iterator[Noticed]:
        seen = self._seen
        if seen.steps_from is None:
            seen.steps_from, seen.source = node, report.source
        if node != seen.steps_from:
            return
        for row in report.rows:
            if seen.last is not None:
                if row.step <= seen.last.step:
                    continue
                if seen.source == "client":
                    seen.durations.append((row.at - seen.last.at) / (row.step - seen.last.step))
            seen.last = row
            self._throughput.add(row, len(seen.ranks))
            yield from self._judge_loss(row, at)
        first = seen.sampled_step is None and seen.last is not None
        due = at - seen.sampled_at >= SAMPLE_S and not seen.silent
        if first or due:
            yield from self._sample(at)

    def _judge_loss(self, row: agent.StepRow, at: float) -> Iterator[Noticed]:
        sample = detection.LossSample(row.step, row.loss, row.position, row.grad_norm)
        self._spike, said = detection.observe_loss(self._spike, sample)
        health = detection.healthy(self._spike)
        if health is not None and health != self._health:
            self._health = health
            yield HealthChanged(health)
        if not isinstance(said, detection.SpikeVerdict):
            return
        yield from self._sample(at)
        onset = said.onset_step if said.onset_position is None else said.onset_position
        last = said.last_step if said.last_position is None else said.last_position
        kind = FailureKind.NAN if said.kind is detection.SpikeKind.NAN else FailureKind.SPIKE
        yield events.LossSpiked(at, self._seen.attempt, kind, said.onset_step, onset, last, row.at, said.why)

    def _on_ranks(self, node: str, report: agent.RanksPolled, at: float) -> Iterator[Noticed]:
        seen = self._seen
        seen.polled_at[node] = at
        for status in report.ranks:
            seen.ranks[status.rank] = (node, status)
        if not seen.imported and seen.ranks and all(s.instrumented for _, s in seen.ranks.values()):
            seen.imported = True
            yield events.RanksImported(report.at, report.attempt)

    def _on_rank_exited(self, node: str, report: agent.RankExited, at: float) -> Iterator[Noticed]:
        rank_exit = report.exit
        self._seen.exits[rank_exit.rank] = (node, rank_exit)
        if rank_exit.finished or rank_exit.by_us or rank_exit.exit_code in (0, None):
            return
        yield from self._sample(at)
        yield events.RankFailed(at, report.attempt, rank_exit.rank, node, rank_exit.exit_code, rank_exit.at)

    def _on_ended(self, node: str, report: agent.AttemptEnded, at: float) -> Iterator[Noticed]:
        seen = self._seen
        if seen.begun and node not in seen.begun:
            return  # It never had a part in the attempt, so its end is not the attempt's.
        seen.ended[node] = report
        for rank_exit in report.ranks:
            seen.exits[rank_exit.rank] = (node, rank_exit)
        if len(seen.ended) < self._nodes:
            return
        yield from self._sample(at)
        ends = seen.ended.values()
        codes = sorted({end.exit_code for end in ends if end.exit_code}, key=abs)
        clean = bool(seen.exits) and all(rank_exit.finished for _, rank_exit in seen.exits.values())
        unstopped = not any(end.by_us for end in ends)
        succeeded = unstopped and (clean or all(end.exit_code == 0 for end in ends))
        detail = "" if succeeded or not unstopped else f"the launcher ended with {codes or 'an unreadable exit code'}"
        if clean and codes:
            yield Told(Severity.NOTE, f"every rank had finished before it ended with {codes}; this is no failure")
        code = codes[0] if codes else 0 if all(end.exit_code == 0 for end in ends) else None
        yield events.AttemptEnded(at, report.attempt, succeeded, code, detail)

    def _on_checkpoint(self, report: agent.CheckpointFact, at: float) -> Iterator[Noticed]:
        fact = report.fact
        if fact.get("event") == "opened":
            yield UriLearned(str(fact.get("uri")))
            return
        if fact.get("event") in ("committed", "stalled") and isinstance(fact.get("stall_s"), float):
            self._stall_s = fact["stall_s"]
        event = checkpoint_facts.event_of(fact, report.attempt, at)
        if isinstance(event, events.AttemptRestored):
            if self._seen.restored:
                return  # An agent started anew tells it again.
            self._seen.restored = True
            self._spike = detection.rewound(self._spike, event.step or 0)
        if event is not None:
            yield event
        complaint = checkpoint_facts.complaint_of(fact)
        if complaint is not None:
            yield Told(Severity.WARNING, complaint)

    def poll(self, state: RunState, at: float) -> list[Noticed]:
        """Called about once a second while an attempt is alive."""
        seen = self._seen
        if state.phase not in (Phase.LAUNCHING, Phase.TRAINING) or seen.attempt != state.attempt or not seen.ranks:
            return list(self._settle(state, at))
        sample = detection.ProgressSample(at, seen.progress(), tuple(seen.durations))
        seen.durations.clear()
        self._hang, verdict = detection.observe_progress(self._hang, sample)
        seen.silent = verdict is not None
        if verdict is None:
            return list(self._settle(state, at))
        if seen.told_hang == verdict.step:
            return []
        seen.told_hang = verdict.step
        suspects = tuple(dict.fromkeys(seen.ranks[rank][0] for rank in verdict.culprits)) if verdict.is_clear else ()
        culprits = ", ".join(str(rank) for rank in verdict.culprits[:4])
        detail = f"{verdict.why}; most suspicious ranks: {culprits}"
        since = at - verdict.silent_s
        culprit = verdict.culprits[0] if verdict.is_clear else None
        found = events.HangFound(at, seen.attempt, verdict.step, since, detail, suspects, culprit)
        return [*self._sample(at), found]

    def _settle(self, state: RunState, at: float) -> Iterator[Noticed]:
        """Tell the core that the attempt is well when nothing else has for a while."""
        seen = self._seen
        if seen.attempt != state.attempt or seen.silent or seen.began_at is None:
            return
        if at - min(seen.polled_at.values(), default=at) > FRESH_S:
            return
        if state.phase is Phase.TRAINING and at - seen.sampled_at >= WELL_S and seen.ranks:
            seen.sampled_at = at
            yield events.ProgressSampled(at, seen.attempt, None if seen.last is None else seen.last.step)
        quiet = not seen.is_instrumented and seen.last is None and state.newest_step is None
        if state.phase is Phase.LAUNCHING and quiet and seen.ranks and at - seen.began_at >= SETTLED_S:
            seen.sampled_at = at
            yield events.ProgressSampled(at, seen.attempt, None)

    def _sample(self, at: float) -> Iterator[Noticed]:
        seen = self._seen
        if seen.last is None or (seen.sampled_step is not None and seen.last.step <= seen.sampled_step):
            return
        seen.sampled_step, seen.sampled_at = seen.last.step, at
        position = None if seen.last.position is None else seen.last.position + 1
        yield events.ProgressSampled(seen.last.at, seen.attempt, seen.last.step, position)

    def numbers(self) -> LiveNumbers:
        seen = self._seen
        pauses = sorted({s.phase for _, s in seen.ranks.values() if s.phase is not None})
        last = seen.last
        return LiveNumbers(
            loss=None if last is None else last.loss,
            tokens_per_s=self._throughput.tokens_per_s,
            step=None if last is None else last.step,
            step_s=self._throughput.step_s,
            pause=", ".join(pauses) or None,
            hang_deadline_s=detection.learned_deadline(self._hang) if seen.ranks else None,
            checkpoint_stall_s=self._stall_s,
        )
