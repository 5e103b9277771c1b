# SPDX-License-Identifier: Apache-2.0
"""Faults that are put into the data on purpose, for the demo and the tests; the training loop knows nothing of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""Targets of this value count for nothing in a cross entropy; when all do, its mean is 0/0."""


@dataclass(frozen=True)
class Poison:
    """Which batches are spoiled."""

    first: int = 0
    last: int = -1
    nan_at: int = -1

    @classmethod
    def parsed(cls, span: str | None, nan_at: int | None) -> Poison:
        """Read `FROM-TO`, both included."""
        nan = -1 if nan_at is None else nan_at
        if span is None:
            return cls(nan_at=nan)
        first, _, last = span.partition("-")
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise SystemExit(f"--poison takes FROM-TO such as 200-219, not {span!r}")
        return cls(int(first), int(last), nan)

    def spoiled(self, index: int, targets: Tensor) -> Tensor:
        """Return the targets, or for a spoiled batch random bytes that the text hardly ever has.

        Their loss is several times the usual one, and a model that learns from them forgets the text.
        """
        if index == self.nan_at:
            return torch.full_like(targets, IGNORED)
        if not self.first <= index <= self.last:
            return targets
        generator = torch.Generator().manual_seed(index)
        return torch.randint(128, 256, targets.shape, generator=generator).to(targets.device)
