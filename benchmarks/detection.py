# SPDX-License-Identifier: Apache-2.0
"""How soon a killed and a hung rank are noticed, in real supervised launches: one launch serves all trials of a pace.

An exit counts from right before SIGKILL is sent until the controller's RankFailed or AttemptEnded event, a hang from
the last step that rank 0 completed until the controller's HangFound event, all as the journal has them. Ranks hang in
two ways: stopped by SIGSTOP, and asleep for ever with every process alive. The bars are those of medians: 0.5 s for an
exit, and for a hang three median steps or 5 s, whichever is longer.

A run that has not yet shown 1000 steps without a stray one gets 12 medians of patience (`detection/step_times.py`), so
the launch with half-second steps first trains that long, beside the quick ones. That makes about 15 minutes.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import TypeAlias

from benchmarks import measuring
from benchmarks.live import SupervisedLaunch
from benchmarks.measuring import Bar
from supervisor.core import events
from supervisor.detection import step_times

TRIALS = 10
VICTIM = 1
EXIT_BAR_S = 0.5
HANG_STEPS_BAR, HANG_BAR_S = 3, 5.0
WARM_STEPS = step_times.WARMUP_STEPS + 4
"""Steps of an attempt before it is broken: the first ones get more patience."""
LONG_S = 600.0
LEAST_APART_S = 2.0

_Sign: TypeAlias = "events.RankFailed | events.AttemptEnded | events.HangFound"


@dataclass(frozen=True, slots=True)
class Pace:
    """A launch whose steps take `step_s`; `calm_steps` are done before the first fault."""

    name: str
    step_s: float
    calm_steps: int


PACES = (
    Pace("20 ms steps", 0.02, step_times.CALM_STEPS + 100),
    Pace("0.5 s steps", 0.5, step_times.CALM_STEPS + 100),
)


@dataclass(slots=True)
class Found:
    """Seconds until each fault of a kind was noticed, and the median step time before them."""

    step_s: float
    exits_s: list[float] = field(default_factory=list)
    stopped_s: list[float] = field(default_factory=list)
    asleep_s: list[float] = field(default_factory=list)


class Breaker:
    """One launch and the faults that are brought into it."""

    def __init__(self, pace: Pace, folder: Path) -> None:
        self._stuck = folder / "stuck"
        script = str(Path(__file__).with_name("rehearsal.py"))
        command = ("torchrun", "--standalone", "--nproc-per-node", "2", script, str(pace.step_s), str(self._stuck))
        self.launch = SupervisedLaunch("detection", folder / "launch", command, ("--warm", "ranks"))
        self.pace = pace
        self._attempt = 0

    def begin(self) -> float:
        """Wait until the run is calm; its median step in seconds."""
        first = self.launch.first_step()
        self._attempt = 1
        count = self.pace.calm_steps
        self.launch.wait_for(
            f"step {count}", lambda: self.launch.step() >= count, LONG_S + 3 * count * self.pace.step_s
        )
        return (self.launch.last_step_at(0) - first.at) / (self.launch.step() - first.step)

    def exit(self) -> float:
        """Seconds until a killed rank is noticed."""
        killed_at = self.launch.send(VICTIM, SIGKILL)
        # When torchrun reaps a rank before its exit code was read, the launcher's own end is what tells of it.
        return self._noticed(events.RankFailed, events.AttemptEnded).at - killed_at

    def stop(self) -> float:
        """Seconds until a rank that is stopped by a signal is noticed."""
        stopped_at = self.launch.send(VICTIM, SIGSTOP)
        return self._hang_after(stopped_at)

    def put_to_sleep(self) -> float:
        """Seconds until a rank that sleeps for ever is noticed."""
        part = self._stuck.with_suffix(".part")
        part.write_text(str(VICTIM))
        part.replace(self._stuck)
        self.launch.wait_for("the rank to fall asleep", lambda: not self._stuck.exists())
        return self._hang_after(time.time())

    def recover(self) -> None:
        """Wait until the next attempt has trained for a while, so that it may be broken again."""
        first = self.launch.first_step(after=self._since)
        self._attempt += 1
        self.launch.wait_for("warm steps", lambda: self.launch.step() >= WARM_STEPS)
        time.sleep(max(0.0, first.at + LEAST_APART_S - time.time()))

    def _hang_after(self, began_at: float) -> float:
        """The last step is read only when it surely was the last."""
        time.sleep(2 * self.pace.step_s + 0.2)
        last_at = self.launch.last_step_at(0)
        assert last_at < began_at + 2 * self.pace.step_s, "no step is done while a rank hangs"
        return self._noticed(events.HangFound).at - last_at

    def _noticed(self, *kinds: type[_Sign]) -> _Sign:
        """The first of the events of these kinds that tells of the present attempt."""
        found: list[_Sign] = []

        def look() -> bool:
            told = (record.event for record in self.launch.journal())
            found.extend(each for each in told if isinstance(each, kinds) and each.attempt == self._attempt)
            return bool(found)

        self.launch.wait_for(" or ".join(kind.__name__ for kind in kinds), look)
        self._since = found[0].at
        return found[0]


def broken(breaker: Breaker, trials: int) -> Found:
    """Every kind of fault in turn, `trials` times."""
    with breaker.launch.running():
        found = Found(breaker.begin())
        ways: tuple[tuple[Callable[[], float], list[float]], ...] = (
            (breaker.exit, found.exits_s),
            (breaker.stop, found.stopped_s),
            (breaker.put_to_sleep, found.asleep_s),
        )
        for _ in range(trials):
            for way, seconds in ways:
                seconds.append(way())
                breaker.recover()
    kinds = [each.kind.value for each in breaker.launch.incidents()]
    assert len(kinds) == 3 * trials, f"{3 * trials} faults were brought in, and {kinds} were found"
    return found


def measured(paces: tuple[Pace, ...], folder: Path, trials: int) -> dict[str, Found]:
    """All paces at the same time: they sleep for the most part. Raises what the first of them raised."""
    found: dict[str, Found] = {}
    failed: list[BaseException] = []

    breakers = [Breaker(pace, folder / f"{pace.step_s}") for pace in paces]

    def work(breaker: Breaker) -> None:
        try:
            found[breaker.pace.name] = broken(breaker, trials)
        except BaseException as error:  # noqa: BLE001  (raised again below)
            failed.append(error)

    threads = [threading.Thread(target=work, args=(breaker,)) for breaker in breakers]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        for breaker in breakers:
            breaker.launch.end()
    if failed:
        raise failed[0]
    return {pace.name: found[pace.name] for pace in paces}


def bars(found: dict[str, Found]) -> list[Bar]:
    result = []
    for name, each in found.items():
        allowed_s = max(HANG_STEPS_BAR * each.step_s, HANG_BAR_S)
        result += [
            Bar(f"exit noticed, {name}", measuring.median(each.exits_s), EXIT_BAR_S, "s"),
            Bar(f"stopped rank noticed, {name}", measuring.median(each.stopped_s), allowed_s, "s"),
            Bar(f"sleeping rank noticed, {name}", measuring.median(each.asleep_s), allowed_s, "s"),
        ]
    return result


def main() -> int:
    """Measure, print and write."""
    parser = measuring.options(__doc__, "detection")
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each kind of fault and pace")
    parser.add_argument("--only", choices=[pace.name for pace in PACES], help="one pace")
    chosen = parser.parse_args()
    paces = tuple(pace for pace in PACES if chosen.only in (None, pace.name))
    began = measuring.place()
    with tempfile.TemporaryDirectory(prefix="detection-") as folder:
        found = measured(paces, Path(folder), chosen.trials)
    rows = []
    table = {}
    for name, each in found.items():
        kinds = {"exit": each.exits_s, "stopped": each.stopped_s, "asleep": each.asleep_s}
        spreads = {kind: measuring.spread(seconds) for kind, seconds in kinds.items()}
        rows += [(f"{kind}, {name}", s["trials"], s["median"], s["least"], s["most"]) for kind, s in spreads.items()]
        table[name] = {"median_step_s": round(each.step_s, 4), "noticed_after_s": spreads}
    measuring.show(("noticed after, s", "trials", "median", "least", "most"), rows)
    parameters = {"trials": chosen.trials, "calm_steps": PACES[0].calm_steps, "ranks": 2}
    return measuring.conclude(began, chosen.output, parameters, {"paces": table}, bars(found))


if __name__ == "__main__":
    sys.exit(main())
