# SPDX-License-Identifier: Apache-2.0
"""One thread that carries out what the core decided, so that the loop waits for no scheduler, store or disk.

Work is done in the order in which it was given; what became of it goes into the loop's queue.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

from supervisor.controller.inbox import EffectDone, Item, WorkDone
from supervisor.core.api import RunState, decisions, events

CarryOut = Callable[[decisions.Decision, RunState], "events.Event | None"]


class EffectsThread:
    """Used by the loop's thread; only `carry_out` and the work that it is given run on its own."""

    def __init__(self, carry_out: CarryOut, inbox: queue.Queue[Item]) -> None:
        self._carry_out = carry_out
        self._inbox = inbox
        self._work: queue.Queue[tuple[str, Callable[[], None]] | None] = queue.Queue()
        self._busy: set[decisions.Decision] = set()
        self._asked_at: dict[decisions.Decision, float] = {}
        self._thread = threading.Thread(target=self._do_all, daemon=True, name="effects")

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        """After the work that was given, waited for so long at most."""
        self._work.put(None)
        self._thread.join(limit_s)

    def put(self, what: str, work: Callable[[], None]) -> None:
        """Do `work`, which `what` names to a person."""
        self._work.put((what, work))

    def ask(self, decision: decisions.Decision, state: RunState, now: float) -> None:
        """Carry the decision out, unless that is still under way."""
        if decision in self._busy:
            return
        self._busy.add(decision)
        self._asked_at[decision] = now
        self.put(type(decision).__name__.lower(), partial(self._do_decision, decision, state))

    def asked_s_ago(self, decision: decisions.Decision, now: float) -> float:
        """Since the decision was last given out; infinite when it never was."""
        return now - self._asked_at.get(decision, float("-inf"))

    def done(self, decision: decisions.Decision) -> None:
        """It may be given out again."""
        self._busy.discard(decision)

    def _do_all(self) -> None:
        while (item := self._work.get()) is not None:
            self._inbox.put(outcome_of(*item))

    def _do_decision(self, decision: decisions.Decision, state: RunState) -> None:
        event = None
        try:
            event = self._carry_out(decision, state)
        finally:
            self._inbox.put(EffectDone(decision, event))


def outcome_of(what: str, work: Callable[[], None]) -> WorkDone:
    """The one place where an effect may fail with anything: it is told, and tried again until its phase ends."""
    try:
        work()
    except Exception as failure:  # noqa: BLE001  (effects: whatever a scheduler, store or disk comes up with)
        return WorkDone(what, f"{what} failed: {failure}; it is tried again")
    return WorkDone(what, None)
