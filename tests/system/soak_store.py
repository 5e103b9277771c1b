# SPDX-License-Identifier: Apache-2.0
"""What a store holds between a restore and the next save, when nothing half-written may be left in it."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.api import EntryState, open_catalogue
from checkpoint.lineage import ref_of
from checkpoint.stores import open_store
from checkpoint.stores.s3 import open_s3
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
    return Findings(visible[-1].step if visible else 0, tuple(faults + _old_uploads(uri)))


def _old_uploads(uri: str) -> list[str]:
    """Parts in S3 that a writer of an attempt before the last but one has left; younger ones may be under way."""
    if not uri.startswith("s3://"):
        return []
    fence = open_catalogue(uri).read_fence()
    assert fence is not None
    left: list[str] = []

    def look(key: str, age_s: float) -> bool:
        ref = ref_of(key.split("/")[0])
        if ref is None or ref.attempt < fence.attempt - 1:
            left.append(f"parts of {key} are left since {age_s:.0f} s")
        return False

    open_s3(uri).drop_unfinished(look)
    return left
