# SPDX-License-Identifier: Apache-2.0
"""The random state of this process: Python's, NumPy's when it is loaded, torch's, and its CUDA device's when used."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

RandomState = dict[str, Any]


def capture() -> RandomState:
    """Copy the state of every generator that the process uses."""
    state: RandomState = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def reinstate(state: RandomState) -> None:
    """Set every generator to a captured state; one that the process has not loaded or lacks is left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
