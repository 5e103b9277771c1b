# SPDX-License-Identifier: Apache-2.0
"""Ranks that step together at a given pace and compute nothing, to be broken by the benchmarks: run by torchrun.

    rehearsal.py STEP_SECONDS STUCK_FILE

Each step is a sleep and an all-reduce. The rank whose number stands in STUCK_FILE sleeps for ever, alive, while the
others wait for it in the collective; it removes the file first, so that its successor is well.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from supervisor.training import supervise


def main() -> None:
    """Step until told to stop."""
    step_s, stuck = float(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo")
    run = supervise()
    value = torch.ones(1024)
    step = 0
    while not run.should_stop:
        step += 1
        time.sleep(step_s)
        if stuck.exists() and stuck.read_text() == str(dist.get_rank()):
            stuck.unlink()
            time.sleep(1e9)
        dist.all_reduce(value)
        run.report(step, loss=1.0, tokens=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
