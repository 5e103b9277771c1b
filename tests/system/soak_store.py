# SPDX-License-Identifier: Apache-2.0
"""What a store holds between a restore and the next save, when nothing half-written may be left in it."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.api import EntryState, open_catalogue
from checkpoint.stores import open_store
from tests.system.soak_ranks import KEEP

_UNPRUNED = 4
"""A writer that dies between a commit and its pruning leaves one too many; so may the next. A later commit prunes."""


@dataclass(frozen=True, slots=True)
class Findings:
    """`newest` is the step of the newest visible checkpoint, 0 without one; `faults` are what should not be."""

    newest: int
    faults: tuple[str, ...]


def inspect(uri: str) -> Findings:
    """Read every byte of every visible checkpoint, and name what is damaged or left over."""
    catalogue = open_catalogue(uri)
    visible = catalogue.committed()
    faults = [f"{each.ref}: {file}" for each in visible for file in catalogue.verify(each.ref)]
    odd = (EntryState.INCOMPLETE, EntryState.SET_ASIDE)
    faults += [f"{each.folder} is {each.state.value}" for each in catalogue.all_entries() if each.state in odd]
    if len(visible) > KEEP + _UNPRUNED:
        faults.append(f"{len(visible)} checkpoints are kept instead of {KEEP}")
    root = sorted(open_store(uri).files(""))
    if len(root) > 1:
        faults.append(f"files are left: {root}")
    return Findings(visible[-1].step if visible else 0, tuple(faults))
