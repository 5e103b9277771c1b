# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that other programs have written: which steps a folder holds, and which are whole as far as it tells.

Nothing is loaded and nothing is changed: listings, a few small files and the ends of large ones are read, and pickles
only by a reader that runs nothing of them. Free of torch.
"""

from __future__ import annotations

from checkpoint.foreign.catalogue import ForeignCatalogue
from checkpoint.foreign.found import ForeignCheckpoint, Format

__all__ = ["ForeignCatalogue", "ForeignCheckpoint", "Format"]
