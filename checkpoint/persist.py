# SPDX-License-Identifier: Apache-2.0
"""Phase one of a commit: a slab's image goes to the store as it lies, and then the rank's plan.

The plan is written only when the file is durable; rank 0's stays with its writer, which commits. The checksum is taken
while the file is written.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import xxhash

from checkpoint.api import CheckpointRef, Store
from checkpoint.lineage import partial_folder_of
from checkpoint.manifest import FileRecord
from checkpoint.plan import RankPlan, encode_plan, plan_name
from checkpoint.record import SaveRecord, file_of
from checkpoint.slab import Slab


def persist(store: Store, slab: Slab, record: SaveRecord, *, when_copied: Callable[[FileRecord], None]) -> RankPlan:
    """Write a rank's part of a checkpoint into the folder that is being built; returns its whole plan.

    Args:
        when_copied: called with the image's size and checksum when the slab is no longer needed.

    Raises:
        OSError: the store could not take it.
    """
    folder, file, length = partial_folder_of(record.ref), file_of(record.plan.rank), slab.image_length
    store.make_folder(folder)
    with slab.image as image, image[:length] as counted, ThreadPoolExecutor(1, "checkpoint-checksum") as aside:
        checksum = aside.submit(xxhash.xxh3_128_hexdigest, counted)
        store.put_buffer(f"{folder}/{file}", image, length)
        written = FileRecord(length, checksum.result())
    when_copied(written)
    plan = replace(record.plan, files={file: written})
    if plan.rank != 0:
        store.write(f"{folder}/{plan_name(plan.rank)}", encode_plan(plan))
    return plan


def confess(store: Store, ref: CheckpointRef, plan: RankPlan) -> None:
    """Write a plan that only says why this rank's part is missing, so that rank 0 does not wait for it.

    Raises:
        OSError: the store could not take it.
    """
    folder = partial_folder_of(ref)
    store.make_folder(folder)
    store.write(f"{folder}/{plan_name(plan.rank)}", encode_plan(plan))
