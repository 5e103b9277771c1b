# SPDX-License-Identifier: Apache-2.0
"""A rank without torch: `rank.py WAY`, which is `client`, `lines`, `stubborn`, `facts` or `exits`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from supervisor.training import supervise

EXITS_BEHIND = 50


def main() -> None:
    way = sys.argv[1]
    if way == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if way == "lines":
        for step in range(1, 100_000):
            print(f"iter {step}: loss {10 / step:.4f}, time 20.00ms", flush=True)
            time.sleep(0.02)
        return
    run = supervise()
    if way == "facts":
        with Path(os.environ["CHECKPOINT_EVENTS"] + ".rank-0.jsonl").open("a") as file:
            file.write(json.dumps({"event": "committed", "step": 7}) + "\n" + '{"event": "torn')
    for step in range(1, 100_000):
        run.report(step, loss=1.0 / step, tokens=3)
        if way == "exits" and step == EXITS_BEHIND:
            os._exit(17)
        if run.should_stop:
            print("stopped at", step, flush=True)
            break
        time.sleep(0.02)


if __name__ == "__main__":
    main()
