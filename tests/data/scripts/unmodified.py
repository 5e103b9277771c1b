# SPDX-License-Identifier: Apache-2.0
"""Knows nothing of a supervisor: prints lines as nanoGPT does and leaves numbered checkpoints, as many scripts do.

With --folders it leaves them as the Hugging Face Trainer does.
"""

import argparse
import json
import os
import time
from pathlib import Path

STEP_S = float(os.environ.get("STEP_S", "0.02"))
IS_FIRST = os.environ.get("RANK", "0") == "0"


def begun_from(checkpoint: Path) -> int:
    if checkpoint.is_dir():
        return int(json.loads((checkpoint / "trainer_state.json").read_text())["global_step"])
    return int(checkpoint.read_text())


def leave_folder(step: int) -> None:
    folder = Path(f"out/checkpoint-{step}")
    folder.mkdir(exist_ok=True)
    (folder / "pytorch_model.bin").write_text(str(step))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--folders", action="store_true")
    options = parser.parse_args()
    begin = begun_from(options.resume) if options.resume else 0
    Path("out").mkdir(exist_ok=True)
    for step in range(begin + 1, options.steps + 1):
        time.sleep(STEP_S)
        if IS_FIRST and step % 5 == 0:
            print(f"iter {step}: loss {4 - step / 100:.4f}, time {STEP_S * 1000:.2f}ms, mfu 1.00%", flush=True)
        if IS_FIRST and step % 20 == 0 and options.folders:
            leave_folder(step)
        elif IS_FIRST and step % 20 == 0:
            partial = Path("out/partial")
            partial.write_text(str(step))
            partial.rename(f"out/ckpt-{step}.txt")


if __name__ == "__main__":
    main()
