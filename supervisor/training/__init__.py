# SPDX-License-Identifier: Apache-2.0
"""What a training script calls; standard library only.

It may look at what the script hands over, but never imports torch, nor anything else of this project.
"""

from supervisor.training.client import Run, supervise
from supervisor.training.positions import DataPosition

__all__ = ["DataPosition", "Run", "supervise"]
