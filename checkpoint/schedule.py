# SPDX-License-Identifier: Apache-2.0
"""At which steps a save is due, so that all ranks say the same without asking each other while they train.

    rank 0   ...... save at D1 | measures a step, chooses D2, writes it to the store ........ save at D2
    others   ...... save at D1 | ........ read D2 from the store, each once ................. save at D2

Time goes differently on each rank, so only rank 0's counts: it names a step in the future, and every rank knows it long
before it gets there, from a thread of its own. A rank that does not hear of it in time misses that one save, which then
is not committed, and says so; the previous checkpoint stands, and the next save is agreed anew.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from checkpoint.api import Store
from checkpoint.interval import FIRST_S, Costs, Every, mean_step, next_due, wanted_seconds

SCHEDULE = "SCHEDULE.json"
LEAD_S = 10.0
"""Seconds before a save at which rank 0 names its step at the latest."""
MEASURED_STEPS = 8
WARM_UP_STEPS = 2
"""The first steps compile and fill caches; they say nothing of those that follow."""
_CLOSE_S = 5.0

_log = logging.getLogger(__name__)


class Schedule(Protocol):
    """Says when a save is due."""

    def due(self, step: int) -> bool:
        """Whether a save is due after this step; every rank asks after every step."""

    def saved(self, stall_s: float, write_s: float) -> None:
        """Take note of what a save has cost; rank 0 tells it."""

    def close(self) -> None:
        """End what runs in the background."""


class FixedSteps:
    """A save at each multiple of a number of steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def due(self, step: int) -> bool:
        return step > 0 and step % self._steps == 0

    def saved(self, stall_s: float, write_s: float) -> None:
        """What saves cost changes nothing here."""

    def close(self) -> None:
        """Nothing runs."""


class AgreedSteps:
    """Saves by time: rank 0 chooses the steps ahead, the others learn them from the store.

    `due` costs a comparison at most steps, and never waits. `when_late` is told the step of a save that this rank has
    learned of only after it.
    """

    def __init__(
        self,
        every: Every,
        store: Store,
        *,
        rank: int,
        world_size: int,
        token: str,
        mttf_s: float,
        lead_s: float = LEAD_S,
        clock: Callable[[], float] = time.monotonic,
        when_late: Callable[[int], None] = lambda _step: None,
    ) -> None:
        self._every, self._store, self._token = every, store, token
        self._rank, self._world_size, self._mttf_s = rank, world_size, mttf_s
        self._lead_s = lead_s if world_size > 1 else 0.0
        self._clock = clock
        self._when_late = when_late
        self._costs = Costs()
        self._times: list[tuple[int, float]] = []
        self._asked = 0
        self._is_measuring = True
        self._step = 0
        self._serial = 0
        self._due: int | None = None
        self._is_wanted = threading.Event()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def due(self, step: int) -> bool:
        self._step = step
        due = self._due
        if due is not None:
            if step < due:
                return False
            self._pass(step, due)
            return step == due
        self._asked += 1
        if self._is_measuring and self._asked > WARM_UP_STEPS:
            self._measure(step)
        return False

    def saved(self, stall_s: float, write_s: float) -> None:
        self._costs = self._costs.with_save(stall_s, write_s)

    def close(self) -> None:
        self._is_closed.set()
        self._is_wanted.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            self._thread = None

    def _pass(self, step: int, due: int) -> None:
        if step > due:
            _log.warning("rank %d learned too late of a save, which cannot be committed step=%d", self._rank, due)
            self._when_late(due)
        self._times = [*self._times[-1:], (step, self._clock())]
        self._due = None
        self._seek()

    def _measure(self, step: int) -> None:
        """Before the first save: wait for enough steps, and long enough, to know how long one takes."""
        now = self._clock()
        self._times = [*self._times[:1], (step, now)]
        began, at = self._times[0]
        if step - began >= MEASURED_STEPS and now - at >= min(1.0, (self._every.seconds or FIRST_S) / 20):
            self._is_measuring = False
            self._seek()

    def _seek(self) -> None:
        """Have the next step chosen; alone at once, else by a thread."""
        if self._world_size == 1:
            self._due = self._choose()
            return
        self._is_wanted.set()
        if self._thread is None:
            work = self._tell if self._rank == 0 else self._listen
            self._thread = threading.Thread(target=work, name="checkpoint-schedule", daemon=True)
            self._thread.start()

    def _choose(self) -> int:
        step_s = mean_step(self._times)
        wanted_s = wanted_seconds(self._every, self._costs, self._mttf_s)
        least = 1 if self._world_size == 1 else 2
        at_best = next_due(self._times[-1][0], step_s=step_s, wanted_s=wanted_s, lead_s=0.0, least=least)
        return max(at_best, next_due(self._step, step_s=step_s, wanted_s=0.0, lead_s=self._lead_s, least=least))

    def _tell(self) -> None:
        """Rank 0's thread. What could not be told is tried again, with a later step once it is too late for it."""
        while self._is_wanted.wait() and not self._is_closed.is_set():
            self._is_wanted.clear()
            self._serial += 1
            due = self._choose()
            while not self._is_closed.is_set():
                due = max(due, self._step + 2)
                told = {"launch": self._token, "serial": self._serial, "due": due}
                try:
                    self._store.write(SCHEDULE, json.dumps(told).encode())
                except OSError as error:
                    _log.warning("the step of the next save cannot be told yet step=%d why=%s", due, error)
                    self._is_closed.wait(self._lead_s / 2)
                    if due <= self._step + 2:
                        due = self._choose()
                else:
                    self._due = due
                    break

    def _listen(self) -> None:
        """The other ranks' thread; mostly one read finds the news, since rank 0 tells it as soon as it can."""
        while self._is_wanted.wait() and not self._is_closed.is_set():
            self._is_wanted.clear()
            pause_s = self._lead_s / 8
            while not self._is_closed.wait(pause_s * (0.5 + random.random())):
                heard = self._read()
                if heard is not None:
                    self._serial, self._due = heard
                    break
                pause_s = min(pause_s * 1.5, self._lead_s / 3)

    def _read(self) -> tuple[int, int] | None:
        try:
            told = json.loads(self._store.read(SCHEDULE))
            serial, due = int(told["serial"]), int(told["due"])
            is_new = told["launch"] == self._token and serial > self._serial
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return (serial, due) if is_new else None


def make_schedule(
    every: Every,
    store: Store,
    *,
    rank: int,
    world_size: int,
    token: str,
    mttf_s: float,
    when_late: Callable[[int], None],
    lead_s: float = LEAD_S,
) -> Schedule:
    """The schedule for an interval."""
    if every.steps is not None:
        return FixedSteps(every.steps)
    return AgreedSteps(
        every,
        store,
        rank=rank,
        world_size=world_size,
        token=token,
        mttf_s=mttf_s,
        lead_s=lead_s,
        when_late=when_late,
    )
