# SPDX-License-Identifier: Apache-2.0
"""`examples/train_gpt.py` as it is, whose batches take $STEP_S seconds to load, so that a fault hits in the middle.

Where there is a file $PACE, it says how long a batch takes, and may be changed at any time.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import gpt
import torch.distributed as dist
import train_gpt
from torch import Tensor

STEP_S = float(os.environ.get("STEP_S", "0"))


def step_s() -> float:
    try:
        return float(Path(os.environ["PACE"]).read_text())
    except (KeyError, OSError, ValueError):
        return STEP_S


class PacedBatches(gpt.Batches):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(step_s())
        return super().__getitem__(index)


if __name__ == "__main__":
    gpt.Batches = PacedBatches  # type: ignore[misc]
    train_gpt.main()
    dist.destroy_process_group()
