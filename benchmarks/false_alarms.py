# SPDX-License-Identifier: Apache-2.0
"""False alarms and delays of the hang and spike detectors on simulated runs of 10,000 steps.

The real detectors see polls each second with reports up to 1 s old, evaluation and checkpoint pauses and noisy step
times; only the training is simulated, so that 10,000 steps take a second. The bar is no false alarm at all. Takes a
minute or two.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from benchmarks import measuring
from benchmarks.measuring import Bar
from supervisor.detection.api import (
    HangState,
    HangVerdict,
    LossSample,
    ProgressSample,
    RankProgress,
    SpikeState,
    SpikeVerdict,
    observe_loss,
    observe_progress,
)

STEPS = 10_000
SEEDS = 2
HANG_DELAY = "hang delay, s (median of 10)"
SPIKE_DELAY = "spike delay, steps (median of 10)"
SPIKE_BARS = {"loss x2.0": 8, "loss x1.3": 30}

Noise = Callable[[random.Random, int], float]
"""Factor on the median step time of a step."""

NOISES: dict[str, Noise] = {
    "calm (sigma 0.03)": lambda r, _: math.exp(r.gauss(0, 0.03)),
    "log-normal sigma 0.2": lambda r, _: math.exp(r.gauss(0, 0.2)),
    "log-normal sigma 0.5": lambda r, _: math.exp(r.gauss(0, 0.5)),
    "Pareto alpha 3": lambda r, _: r.paretovariate(3),
    "1 % slow 2-10x": lambda r, _: (r.uniform(2, 10) if r.random() < 0.01 else 1.0) * math.exp(r.gauss(0, 0.05)),
    "drift to 3x": lambda r, step: (1 + 2 * step / STEPS) * math.exp(r.gauss(0, 0.05)),
}
QUICK_MEDIANS_S = (0.05, 0.25)
SLOW = [*((name, 1.0) for name in NOISES), ("log-normal sigma 0.5", 3.0), ("1 % slow 2-10x", 3.0)]
RANKS = 2
PAUSES = (("checkpoint", 100, 5.0, 8.0), ("evaluation", 500, 30.0, 120.0))
"""Name, period in steps, shortest and longest duration in seconds."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of simulated time in which rank 0 steps or pauses; the others wait for it in a collective."""

    start: float
    end: float
    phase: str | None


def spans(noise: Noise, median_s: float, seed: int, steps: int) -> Iterator[Span]:
    """Start-up, then steps with their pauses."""
    random_source = random.Random(f"{seed} {median_s}")
    now = 40.0
    yield Span(0.0, now, "startup")
    for step in range(steps):
        for name, period, shortest_s, longest_s in PAUSES:
            if step and step % period == 0:
                end = now + random_source.uniform(shortest_s, longest_s)
                yield Span(now, end, name)
                now = end
        end = now + median_s * noise(random_source, step) * (20.0 if step == 0 else 1.0)
        yield Span(now, end, None)
        now = end


@dataclass(slots=True)
class Job:
    """What the agents report of a simulated job."""

    step: int = 0
    alive_at: float = 0.0
    span: Span = Span(0.0, 0.0, "startup")
    state: HangState = field(default_factory=HangState)

    def poll(self, at: float, report_age_s: float, durations: tuple[float, ...]) -> HangVerdict | None:
        seen = max(self.span.start, at - report_age_s)
        step = self.step or None
        idle_s = max(0.0, seen - self.alive_at)
        paused = RankProgress(0, "n0", step, idle_s, self.span.phase, seen - self.span.start)
        others = [RankProgress(rank, "n1", step, idle_s) for rank in range(1, RANKS)]
        self.state, verdict = observe_progress(self.state, ProgressSample(at, (paused, *others), durations))
        return verdict


def false_hangs(noise: Noise, median_s: float, seed: int, steps: int) -> tuple[int, Job, float]:
    """Number of false hangs in a run that never hangs (a hang counts once), the job at its end, and that time."""
    random_source = random.Random(seed)
    job, next_poll = Job(), 0.0
    alarmed: set[int | None] = set()
    durations: list[float] = []
    for span in spans(noise, median_s, seed, steps):
        job.span = span
        while next_poll < span.end:
            verdict = job.poll(next_poll, random_source.random(), tuple(durations))
            durations.clear()
            next_poll += 1.0
            if verdict is not None:
                alarmed.add(verdict.step)
        job.alive_at = span.end
        if span.phase is None:
            job.step += 1
            durations.append(span.end - span.start)
    return len(alarmed), job, next_poll


def hang_delays(median_s: float, tries: int, steps: int) -> list[float]:
    """Seconds from a calm run's last step to the verdict, for several rhythms of polls and ages of reports."""
    _, trained, next_poll = false_hangs(NOISES["calm (sigma 0.03)"], median_s, 0, steps)
    found = []
    for seed in range(tries):
        random_source = random.Random(seed)
        job = replace(trained, span=Span(trained.alive_at, math.inf, None))
        now = next_poll + random_source.random()
        while job.poll(now, random_source.random(), ()) is None:
            now += 1.0
        found.append(now - trained.alive_at)
    return found


def losses(kind: str, seed: int, steps: int) -> Iterator[float]:
    """A realistic loss: fast fall during LR warm-up, slow fall, and the kind's noise."""
    random_source = random.Random(f"{seed} {kind}")
    wander = 0.0
    for step in range(steps):
        trend = 2.0 + 9.0 * math.exp(-step / 150) + 1.0 * math.exp(-step / 4000)
        normal = random_source.gauss(0, 1)
        if kind == "normal 2 %":
            noise = 0.02 * normal
        elif kind == "heavy tail (t3) 3 %":
            noise = 0.03 * normal / math.sqrt(random_source.gammavariate(1.5, 2.0) / 3)
        elif kind == "wandering 4 %":
            wander = 0.95 * wander + 0.04 * math.sqrt(1 - 0.95**2) * normal
            noise = wander
        elif kind == "short spikes":
            noise = 0.02 * normal + (1.0 if step % 400 in (200, 201, 202) else 0.0)
        else:
            noise = 0.02 * normal + 0.5 * step / steps
        yield trend * (1 + noise)


LOSS_KINDS = ("normal 2 %", "heavy tail (t3) 3 %", "wandering 4 %", "short spikes", "drift up 50 %")


def false_spikes(kind: str, seed: int, steps: int) -> tuple[int, SpikeState]:
    """Number of false spikes (an episode counts once) in a run without any, and the state at its end."""
    state = SpikeState()
    onsets: set[int] = set()
    for step, loss in enumerate(losses(kind, seed, steps)):
        state, verdict = observe_loss(state, LossSample(step, loss, step, 1.0))
        if isinstance(verdict, SpikeVerdict):
            onsets.add(verdict.onset_step)
    return len(onsets), state


def spike_delay(jump: float, seed: int, steps: int) -> int:
    """Steps from a lasting jump of the loss to the verdict, the step of the verdict included."""
    _, state = false_spikes("normal 2 %", seed, steps)
    after = list(losses("normal 2 %", seed, steps + 200))[steps:]
    for count, loss in enumerate(after, start=1):
        state, verdict = observe_loss(state, LossSample(steps + count, loss * jump, steps + count, 1.0))
        if isinstance(verdict, SpikeVerdict):
            return count
    raise AssertionError(f"a jump to {jump} times the loss was not found in {len(after)} steps (seed {seed})")


def hangs_of(name: str, median_s: float, seeds: int, steps: int) -> int:
    """False hangs of a kind of noise over the seeds."""
    return sum(false_hangs(NOISES[name], median_s, seed, steps)[0] for seed in range(seeds))


def spikes_of(kind: str, seeds: int, steps: int) -> int:
    """False spikes of a kind of loss over the seeds."""
    return sum(false_spikes(kind, seed, steps)[0] for seed in range(seeds))


def median_hang_delay(median_s: float) -> float:
    """Seconds, over ten tries in a run that has become calm."""
    return statistics.median(hang_delays(median_s, 10, 1_200))


def median_spike_delay(jump: float) -> float:
    """Steps, over ten seeds."""
    return statistics.median(spike_delay(jump, seed, 1_000) for seed in range(10))


def measured(steps: int, seeds: int) -> dict[str, dict[str, float]]:
    """All numbers of the benchmark by table and row; slow steps need many polls and are tried with one seed."""
    with ProcessPoolExecutor() as pool:
        slow = [(name, median_s, 1) for name, median_s in SLOW]
        quick = [(name, median_s, seeds) for name in NOISES for median_s in QUICK_MEDIANS_S]
        futures: dict[str, dict[str, Future[float]]] = {
            "false hangs": {
                f"{name}, {median_s} s steps": pool.submit(hangs_of, name, median_s, tries, steps)
                for name, median_s, tries in slow + quick
            },
            "false spikes": {kind: pool.submit(spikes_of, kind, seeds, steps) for kind in LOSS_KINDS},
            HANG_DELAY: {
                f"{median_s} s steps": pool.submit(median_hang_delay, median_s)
                for median_s in (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
            },
            SPIKE_DELAY: {f"loss x{jump}": pool.submit(median_spike_delay, jump) for jump in (1.3, 1.5, 2.0, 3.0)},
        }
        return {title: {row: each.result() for row, each in rows.items()} for title, rows in futures.items()}


def bars(table: dict[str, dict[str, float]]) -> list[Bar]:
    """The claims."""
    result = [
        Bar(f"{kind}, {row}", count, 0, "alarms")
        for kind in ("false hangs", "false spikes")
        for row, count in table[kind].items()
    ]
    result += [
        Bar(f"hang noticed, {row}", delay_s, max(3 * float(row.split()[0]), 5.0), "s")
        for row, delay_s in table[HANG_DELAY].items()
    ]
    return result + [
        Bar(f"spike noticed, {row}", table[SPIKE_DELAY][row], limit, "steps") for row, limit in SPIKE_BARS.items()
    ]


def main() -> int:
    """Measure, print and write."""
    parser = measuring.options(__doc__, "false_alarms")
    chosen = parser.parse_args()
    began = measuring.place()
    table = measured(STEPS, SEEDS)
    for title, rows in table.items():
        measuring.show((title, ""), [(row, f"{value:.1f}") for row, value in rows.items()])
    parameters = {"steps": STEPS, "seeds": SEEDS, "ranks": RANKS}
    return measuring.conclude(began, chosen.output, parameters, table, bars(table))


if __name__ == "__main__":
    sys.exit(main())
