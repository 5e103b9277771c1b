# SPDX-License-Identifier: Apache-2.0
"""What the supervisor's own processes cost while a run is quiet: processor time and memory of controller and agent.

The run steps every two seconds and nothing else happens. Processor time is user and system time of all threads from
/proc/PID/stat; memory is the proportional set size (shared pages are divided among those who share them) and the
resident set size from smaps_rollup. The standby, a further interpreter with torch in it, is told apart.

The bar: controller and agent together below 1 % of a core and 80 MB. Takes a minute and a half.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import measuring
from benchmarks.live import SupervisedLaunch
from benchmarks.measuring import Bar
from supervisor.agent import processes

STEP_S = 2.0
WATCH_S = 60.0
QUIET_AFTER_S = 10.0
"""From the standby's readiness until the measurement begins."""
SHARE_BAR = 0.01
MEMORY_BAR_MB = 80.0
MB = 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one process."""

    cpu_share: float
    """Of one core."""
    pss_mb: float
    rss_mb: float
    threads: int
    wake_ups_a_second: float
    """Times it gave up the processor of its own will, all threads together."""


def cpu_s(pid: int) -> float:
    """User and system time of all threads that the process has or had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> tuple[float, float]:
    """Proportional and resident set size."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split()[0]: int(line.split()[1]) for line in lines}
    return kib["Pss:"] * 1024 / MB, kib["Rss:"] * 1024 / MB


def wake_ups(pid: int) -> int:
    """Voluntary context switches of the threads that live now."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        line = next(each for each in (task / "status").read_text().splitlines() if each.startswith("voluntary_"))
        total += int(line.split()[1])
    return total


def watched(pids: dict[str, int], seconds: float) -> dict[str, Cost]:
    """Cost of each process over that time; memory is that at its end."""
    before = {name: (cpu_s(pid), wake_ups(pid)) for name, pid in pids.items()}
    began = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    costs = {}
    for name, pid in pids.items():
        pss_mb, rss_mb = memory_mb(pid)
        used_s, woken = before[name]
        costs[name] = Cost(
            cpu_share=round((cpu_s(pid) - used_s) / took_s, 6),
            pss_mb=round(pss_mb, 2),
            rss_mb=round(rss_mb, 2),
            threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
            wake_ups_a_second=round((wake_ups(pid) - woken) / took_s, 2),
        )
    return costs


def standby_of(agent: int) -> int | None:
    """The interpreter below the agent that waits to be a launcher, None when there is none."""
    for pid in processes.descendants(agent):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if command[0] != b"/bin/sh" and any(word.endswith(b"standby.py") for word in command):
            return pid
    return None


def measured(folder: Path, step_s: float, watch_s: float, quiet_s: float) -> dict[str, Cost]:
    """Costs of controller, agent and standby by name."""
    script = str(Path(__file__).with_name("rehearsal.py"))
    command = ("torchrun", "--standalone", "--nproc-per-node", "2", script, str(step_s), str(folder / "stuck"))
    launch = SupervisedLaunch("quiet", folder / "run", command)
    with launch.running():
        launch.first_step()
        launch.wait_for("standby", lambda: bool(launch.standbys_ready))
        time.sleep(quiet_s)
        step = launch.step()
        pids = launch.processes()
        standby = standby_of(pids["agent"])
        assert standby is not None, "the agent's log tells of a standby"
        costs = watched({**pids, "standby": standby}, watch_s)
        assert launch.step() >= step + 0.8 * watch_s / (step_s + 0.1), "training went on meanwhile"
        assert not launch.incidents(), "nothing happened meanwhile"
    return costs


def main() -> int:
    """Measure, print and write."""
    parser = measuring.options(__doc__, "control_plane")
    parser.add_argument("--seconds", type=float, default=WATCH_S, help="time that is measured")
    chosen = parser.parse_args()
    began = measuring.place()
    with tempfile.TemporaryDirectory(prefix="control-plane-") as folder:
        costs = measured(Path(folder), STEP_S, chosen.seconds, QUIET_AFTER_S)
    ours = [costs["controller"], costs["agent"]]
    together = Cost(*(sum(getattr(each, name) for each in ours) for name in Cost.__dataclass_fields__))
    rows = {"controller": ours[0], "agent": ours[1], "both": together, "standby (apart)": costs["standby"]}
    measuring.show(
        ("process", "% of a core", "PSS MB", "RSS MB", "threads", "wake-ups/s"),
        [(n, 100 * c.cpu_share, c.pss_mb, c.rss_mb, c.threads, c.wake_ups_a_second) for n, c in rows.items()],
    )
    bars = [
        Bar("processor time of both", 100 * together.cpu_share, 100 * SHARE_BAR, "% of a core"),
        Bar("proportional set size of both", together.pss_mb, MEMORY_BAR_MB, "MB"),
        Bar("resident set size of both", together.rss_mb, MEMORY_BAR_MB, "MB"),
    ]
    parameters = {"seconds": chosen.seconds, "step_s": STEP_S, "quiet_after_s": QUIET_AFTER_S}
    found = {name: {key: getattr(cost, key) for key in Cost.__dataclass_fields__} for name, cost in rows.items()}
    return measuring.conclude(began, chosen.output, parameters, {"processes": found}, bars)


if __name__ == "__main__":
    sys.exit(main())
