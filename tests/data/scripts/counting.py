# SPDX-License-Identifier: Apache-2.0
"""Counts steps instead of training, tells them to the supervisor, and fails as it is told; needs no torch."""

import argparse
import os
import signal
import time
from pathlib import Path

from supervisor.training import supervise

RANK = int(os.environ.get("RANK", "0"))
STEP_S = float(os.environ.get("STEP_S", "0.02"))


def fail(how: str) -> None:
    if how == "type-error":
        length: object = "thirty-two"
        print(length / 2)  # type: ignore[operator]
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hang":
        time.sleep(3600)
    elif how == "exit":
        os._exit(17)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--fail", choices=("type-error", "kill", "hang", "exit"))
    parser.add_argument("--at", type=int, default=0, help="behind this step; 0: before the first")
    parser.add_argument("--rank", type=int, help="the only one that fails (default: every rank)")
    parser.add_argument("--once", type=Path, help="a file that tells of the failure, so that it happens once")
    parser.add_argument("--deaf", action="store_true", help="does not stop when asked to")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run = supervise()
    for step in range(options.steps + 1):
        if step:
            time.sleep(STEP_S)
            run.report(step, loss=3.0 - step / 1000)
            if not options.quiet:
                print(f"counted {step}", flush=True)
        is_meant = options.rank in (None, RANK) and not (options.once and options.once.exists())
        if options.fail and step == options.at and is_meant:
            if options.once:
                options.once.touch()
            fail(options.fail)
        if run.should_stop and not options.deaf:
            return


if __name__ == "__main__":
    main()
