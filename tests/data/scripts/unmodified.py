# SPDX-License-Identifier: Apache-2.0
"""Knows nothing of a supervisor: prints lines as nanoGPT does and leaves numbered checkpoints, as many scripts do."""

import argparse
import os
import time
from pathlib import Path

STEP_S = float(os.environ.get("STEP_S", "0.02"))
IS_FIRST = os.environ.get("RANK", "0") == "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    begin = int(options.resume.read_text()) if options.resume else 0
    Path("out").mkdir(exist_ok=True)
    for step in range(begin + 1, options.steps + 1):
        time.sleep(STEP_S)
        if IS_FIRST and step % 5 == 0:
            print(f"iter {step}: loss {4 - step / 100:.4f}, time {STEP_S * 1000:.2f}ms, mfu 1.00%", flush=True)
        if IS_FIRST and step % 20 == 0:
            partial = Path("out/partial")
            partial.write_text(str(step))
            partial.rename(f"out/ckpt-{step}.txt")


if __name__ == "__main__":
    main()
