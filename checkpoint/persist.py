# SPDX-License-Identifier: Apache-2.0
"""Phase one of a commit: a rank writes its file and then its plan.

The file is that of PyTorch's FileSystemWriter: items appended, each a whole `torch.save` stream, their places kept
in the plan. The plan is written only when the file is durable.
"""

from __future__ import annotations

import torch
import xxhash

from checkpoint.api import Sink, Store
from checkpoint.manifest import FileRecord
from checkpoint.plan import RankPlan, WrittenItem, encode_plan, plan_name
from checkpoint.snapshot import Snapshot


def write_rank(
    store: Store, folder: str, snapshot: Snapshot, *, launch: str, serial: int, rank: int, world_size: int
) -> RankPlan:
    """Write a rank's part of a checkpoint into the folder that is being built.

    Raises:
        OSError: the store could not take it.
    """
    store.make_folder(folder)
    file = f"__{rank}_0.distcp"
    items = []
    with store.create(f"{folder}/{file}") as sink:
        stream = _Checksummed(sink)
        for fqn, payload in snapshot.pickled.items():
            start = stream.position
            stream.write(payload)
            items.append(WrittenItem(fqn, file, start, stream.position - start))
        for chunk in snapshot.chunks:
            start = stream.position
            torch.save(chunk.values, stream)  # type: ignore[arg-type]
            stream.demand_success()
            items.append(
                WrittenItem(chunk.fqn, file, start, stream.position - start, chunk.offsets, tuple(chunk.values.shape))
            )
        stream.demand_success()
    plan = RankPlan(
        launch=launch,
        serial=serial,
        rank=rank,
        world_size=world_size,
        files={file: FileRecord(stream.position, stream.digest.hexdigest())},
        tensors=snapshot.tensors,
        paths=snapshot.paths,
        items=items,
    )
    store.write(f"{folder}/{plan_name(rank)}", encode_plan(plan))
    return plan


class _Checksummed:
    """Counts and checksums what goes by.

    An error of the sink is kept and raised afterwards: raised out of `write`, it would pass through torch's zip
    writer in C++, which then fails again while it closes its archive and hides the cause.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._error: OSError | None = None
        self.position = 0
        self.digest = xxhash.xxh3_128()

    def write(self, payload: bytes | memoryview) -> int:
        length = len(payload)
        if self._error is None:
            try:
                self._sink.write(payload)
            except OSError as error:
                self._error = error
            self.digest.update(payload)
        self.position += length
        return length

    def flush(self) -> None:
        """Nothing is buffered here; torch's writer asks for it."""

    def demand_success(self) -> None:
        if self._error is not None:
            raise self._error
