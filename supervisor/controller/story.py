# SPDX-License-Identifier: Apache-2.0
"""The journal told as a timeline: attempts, incidents with their times, a person's orders, and how it ended. Pure.

Nothing is remembered beside the journal: the records are taken through the state machine once more, and what it said
then is what stands here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor.controller import wording
from supervisor.controller.api import JournalRecord
from supervisor.core import decisions as d
from supervisor.core import events as e
from supervisor.core.accounting import Account, account
from supervisor.core.api import Policy, RunState, Severity, Verdict, advance
from supervisor.core.incidents import Incident
from supervisor.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the timeline; `incident` is 0 for what belongs to none."""

    at: float
    severity: Severity
    text: str
    incident: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    launched_at: float
    resume: str
    """The step, or words for it."""
    skipped: str = ""
    first_step: int | None = None
    last_step: int | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Story:
    run: str
    submitted_at: float
    until: float
    state: RunState
    account: Account
    attempts: tuple[Attempt, ...]
    entries: tuple[Entry, ...]
    verdicts: Mapping[int, Verdict]
    """By incident; one without a diagnosis is not there."""
    corrections: Mapping[int, str]
    """By incident, the reason that a person gave."""
    orders: tuple[e.OrderGiven, ...]

    @property
    def incidents(self) -> tuple[Incident, ...]:
        return self.account.incidents


class _Teller:
    """Collects while the records go by; `story` is asked once they have."""

    def __init__(self) -> None:
        self._state: RunState | None = None
        self._policy = Policy()
        self._attempts: dict[int, Attempt] = {}
        self._entries: list[Entry] = []
        self._verdicts: dict[int, Verdict] = {}
        self._corrections: dict[int, str] = {}
        self._orders: list[e.OrderGiven] = []

    def hear(self, record: JournalRecord) -> None:
        self._policy = record.policy or self._policy
        event = record.event
        if event is None:
            return
        before = self._state
        after, decided = advance(before, event, self._policy)
        self._state = after
        incident = _incident_of(before, after)
        happened = _happened(event)
        if happened is not None:
            self._entries.append(Entry(event.at, Severity.NOTE, happened, incident))
        for decision in decided:
            self._decided(event.at, decision, incident)
        self._note(event, before, after)

    def _decided(self, at: float, decision: d.Decision, incident: int) -> None:
        if isinstance(decision, d.Notify):
            self._entries.append(Entry(at, decision.severity, decision.text, decision.incident or incident))
            return
        if isinstance(decision, d.Launch):
            skipped = wording.ranges(decision.skipped)
            self._attempts[decision.attempt] = Attempt(decision.attempt, at, _resume(decision), skipped)
        text = _done(decision)
        if text is not None:
            self._entries.append(Entry(at, Severity.NOTE, text, incident))

    def _note(self, event: e.Event, before: RunState | None, after: RunState) -> None:
        match event:
            case e.Diagnosed() if after.failure is not None and after.failure.verdict is event.verdict:
                self._verdicts[after.failure.incident] = event.verdict
            case e.OrderGiven():
                self._orders.append(event)
                if event.incident is not None and event.reason is not None:
                    self._corrections[event.incident] = event.reason
            case e.ProgressSampled() if after.step is not None:
                self._mark(event.attempt, last_step=after.step)
            case e.AttemptEnded() if before is not None and before != after:
                self._mark(event.attempt, ended_at=event.at)
            case _:
                pass

    def _mark(self, attempt: int, **facts: Any) -> None:
        known = self._attempts.get(attempt)
        if known is None:
            return
        if known.first_step is None and facts.get("last_step") is not None:
            facts["first_step"] = facts["last_step"]
        self._attempts[attempt] = replace(known, **facts)

    def story(self, records: tuple[JournalRecord, ...]) -> Story | None:
        state = self._state
        if state is None:
            return None
        until = records[-1].at
        return Story(
            run=state.run,
            submitted_at=state.submitted_at,
            until=until,
            state=state,
            account=account(records, until),
            attempts=tuple(self._attempts.values()),
            entries=tuple(self._entries),
            verdicts=self._verdicts,
            corrections=self._corrections,
            orders=tuple(self._orders),
        )


def tell(records: Iterable[JournalRecord]) -> Story | None:
    """The story of a journal, None while nothing has happened."""
    kept = tuple(records)
    teller = _Teller()
    for record in kept:
        teller.hear(record)
    return teller.story(kept)


def only_incident(story: Story, number: int) -> Story:
    """The story reduced to one incident. Raises UsageError when there is none of that number."""
    if not any(each.number == number for each in story.incidents):
        known = f"1 to {len(story.incidents)}" if story.incidents else "none"
        raise UsageError(f"run {story.run} has no incident {number}; known: {known}")
    incidents = tuple(each for each in story.incidents if each.number == number)
    return replace(
        story,
        account=replace(story.account, incidents=incidents),
        entries=tuple(each for each in story.entries if each.incident == number),
        orders=(),
        attempts=(),
    )


def _incident_of(before: RunState | None, after: RunState) -> int:
    """The open incident, or the one that the event closes."""
    for state in (after, before):
        if state is not None and state.failure is not None:
            return state.failure.incident
    return 0


def _happened(event: e.Event) -> str | None:
    """Words for an event of which the state machine tells nothing by itself."""
    match event:
        case e.ControllerReturned():
            return "a new supervisor process took the run over"
        case e.AttemptStarted():
            return f"attempt {event.attempt} was started on {', '.join(event.nodes) or 'no node'}"
        case e.AttemptRestored() if event.step is not None:
            return f"attempt {event.attempt} restored step {event.step}"
        case e.AttemptRestored():
            return f"attempt {event.attempt} starts from nothing"
        case e.AttemptEnded():
            how = f"exit code {event.exit_code}" if event.exit_code is not None else "no exit code"
            return f"attempt {event.attempt} has ended ({event.detail or how})"
        case e.StopSignalled():
            return f"the supervisor was told to stop ({event.signal})"
        case e.NodeCordoned():
            return f"{event.node} is cordoned"
        case _:
            return None


def _done(decision: d.Decision) -> str | None:
    match decision:
        case d.Launch():
            skipped = wording.ranges(decision.skipped)
            without = f", without batches {skipped}" if skipped else ""
            excluded = f", without {', '.join(decision.excluded)}" if decision.excluded else ""
            return f"-> launch attempt {decision.attempt} from {_resume(decision)}{without}{excluded}"
        case d.Stop():
            first = "keep stacks, then " if decision.evidence else ""
            return f"-> {first}stop attempt {decision.attempt}"
        case d.KeepEvidence():
            return f"-> keep the stacks of attempt {decision.attempt}, which is not stopped"
        case d.Finish():
            return f"-> let attempt {decision.attempt} finish its step and save"
        case d.Diagnose():
            return f"-> find the cause in the logs of attempt {decision.attempt}"
        case d.Probe():
            return f"-> test the nodes of attempt {decision.attempt} in pairs"
        case d.Cordon():
            return f"-> cordon {decision.node}"
        case d.Notify() | d.Release():
            return None


def _resume(launch: d.Launch) -> str:
    if launch.resume is not None:
        return f"step {launch.resume.step}"
    return "the beginning" if launch.from_nothing else "the newest checkpoint"
