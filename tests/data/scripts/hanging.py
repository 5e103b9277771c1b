# SPDX-License-Identifier: Apache-2.0
"""Reduces a tensor at every step over gloo; in the first attempt its rank 1 hangs at step 30 as it is told."""

import argparse
import os
import time

import torch
import torch.distributed as dist

from supervisor.training import supervise

HANGS_AT = 30


def spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("loop", "skip", "run"))
    way = parser.parse_args().way
    dist.init_process_group("gloo")
    run = supervise()
    hangs = dist.get_rank() == 1 and os.environ.get("SUPERVISOR_ATTEMPT") == "1"
    steps = 2 * HANGS_AT if os.environ.get("SUPERVISOR_ATTEMPT") != "1" else 1_000_000
    for step in range(1, steps + 1):
        time.sleep(0.02)
        if hangs and step == HANGS_AT and way == "loop":
            spin()
        if hangs and step == HANGS_AT and way == "skip":
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(8))
        run.report(step, loss=1.0)
        if run.should_stop:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
