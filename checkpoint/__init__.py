# SPDX-License-Identifier: Apache-2.0
"""Asynchronous, verified checkpoints in the format of PyTorch distributed checkpoint.

`Checkpointer` is looked up when it is first used: the controller imports this package and must never pay for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkpoint.checkpointer import Checkpointer

__all__ = ["Checkpointer"]


def __getattr__(name: str) -> object:
    if name == "Checkpointer":
        from checkpoint.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
