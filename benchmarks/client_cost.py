# SPDX-License-Identifier: Apache-2.0
"""What the training client costs a step: `run.report`, `run.batches` and `run.should_stop`, beside an agent that reads.

The bar: 20 microseconds for a report, and 0.5 % of a 50 ms step for all calls of a step together. Each call is timed
on its own, so the clock's own cost is in. Takes a few seconds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import measuring
from benchmarks.measuring import Bar
from supervisor.training import Run, supervise
from supervisor.training.control import ControlPage
from supervisor.training.ring import RingReader

STEPS = 100_000
POLL_SECONDS = 0.05
STEP_SECONDS = 0.050
REPORT_BAR_US = 20.0
SHARE_BAR = 0.005


class Agent:
    """Reads the ring as the node agent does, from another thread, until told to stop."""

    def __init__(self, ring: Path) -> None:
        self._reader = RingReader(ring)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self.read = 0

    def __enter__(self) -> Agent:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.read += len(self._reader.poll())

    @property
    def dropped(self) -> int:
        """Records lost by overrun: this loop writes thousands of times faster than a training run."""
        return self._reader.dropped

    def _poll(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            self.read += len(self._reader.poll())


def timed(run: Run) -> dict[str, list[int]]:
    """Return nanoseconds of each call, by its name."""
    clock = time.perf_counter_ns
    spent: dict[str, list[int]] = {"report": [], "batches": [], "should_stop": []}
    loop = run.batches(range(STEPS))
    for _ in range(STEPS):
        begin = clock()
        step, _ = next(loop)
        got = clock()
        run.report(step, loss=2.5, grad_norm=0.75, tokens=4096)
        told = clock()
        is_due = run.should_stop
        asked = clock()
        assert not is_due
        spent["batches"].append(got - begin)
        spent["report"].append(told - got)
        spent["should_stop"].append(asked - told)
    return spent


def measured() -> dict[str, dict[str, float]]:
    """Return median and 99th percentile of each call, in microseconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ControlPage.create(folder / "control").close()
        run = supervise({"SUPERVISOR_RANK_FOLDER": name, "SUPERVISOR_RUN": "cost", "SUPERVISOR_ATTEMPT": "1"})
        with Agent(folder / "rank-0.ring") as agent:
            spent = timed(run)
        assert agent.read + agent.dropped == STEPS + 1, "every step and the begin are read or counted as dropped"
        run.close()
    calls = {
        call: {"median_us": statistics.median(each) / 1e3, "p99_us": statistics.quantiles(each, n=100)[98] / 1e3}
        for call, each in spent.items()
    }
    totals = [sum(each) for each in zip(*spent.values(), strict=True)]
    calls["whole step"] = {
        "median_us": statistics.median(totals) / 1e3,
        "p99_us": statistics.quantiles(totals, n=100)[98] / 1e3,
    }
    return calls


def main() -> int:
    """Measure, print and write."""
    parser = measuring.options(__doc__, "client_cost")
    chosen = parser.parse_args()
    began = measuring.place()
    calls = measured()
    share = calls["whole step"]["median_us"] / 1e6 / STEP_SECONDS
    measuring.show(("call, us", "median", "99 %"), [(k, v["median_us"], v["p99_us"]) for k, v in calls.items()])
    bars = [
        Bar("99 % of the reports", calls["report"]["p99_us"], REPORT_BAR_US, "us"),
        Bar(f"share of a {STEP_SECONDS * 1e3:.0f} ms step", 100 * share, 100 * SHARE_BAR, "%"),
    ]
    found = {
        "calls": {call: {key: round(value, 3) for key, value in cost.items()} for call, cost in calls.items()},
        "share_of_50_ms_step": round(share, 7),
    }
    return measuring.conclude(began, chosen.output, {"steps": STEPS}, found, bars)


if __name__ == "__main__":
    sys.exit(main())
