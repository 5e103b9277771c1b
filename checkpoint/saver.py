# SPDX-License-Identifier: Apache-2.0
"""A rank's saves from the call to the writer: look at the state, copy it into a free slot, hand the slot in.

Only the copy is on the step path. Every rank numbers its saves, the skipped ones too, and no number is below its step:
so the numbers agree, and do so again after a save that one rank never knew of.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from checkpoint.api import CheckpointError, CheckpointRef, Store
from checkpoint.copying import Copier, Copy
from checkpoint.cuda import CUDA, Devices
from checkpoint.events import EventLog
from checkpoint.launch import Identity
from checkpoint.record import Notes
from checkpoint.slab import Word, name_of, sweep
from checkpoint.slots import SlotPair
from checkpoint.snapshot import Sight, Surveyor
from checkpoint.wire import Bye, Hello, Missed, Saved
from checkpoint.writer_link import Line, ProcessLine, ThreadLine, WriterLink

_ITEM_BYTES = 2048
"""Of a tensor's stream and its entry in the record, without the values."""
_MOMENTS = 2
"""Tensors of a parameter's size that most optimizers keep of each: Adam and its kin."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the environment says of this process and its node."""

    local_rank: int
    local_world_size: int
    writer: str
    linger_s: float

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Surroundings:
        """Read `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `CHECKPOINT_WRITER` and `CHECKPOINT_LINGER_S`.

        Raises:
            CheckpointError: one of them cannot be read.
        """
        writer = environment.get("CHECKPOINT_WRITER", "process")
        if writer not in ("process", "thread"):
            raise CheckpointError(f"CHECKPOINT_WRITER={writer!r} must be 'process' or 'thread'")
        try:
            return cls(
                int(environment.get("LOCAL_RANK", "0")),
                int(environment.get("LOCAL_WORLD_SIZE", "1")),
                writer,
                float(environment.get("CHECKPOINT_LINGER_S", "30")),
            )
        except ValueError as error:
            raise CheckpointError(f"LOCAL_RANK, LOCAL_WORLD_SIZE or CHECKPOINT_LINGER_S: {error}") from error


@dataclass(frozen=True, slots=True)
class Manner:
    """How to save: whether it `must` be, by waiting for a slot; beside the next step; for the store or for memory."""

    must: bool = False
    overlap: bool = False
    durable: bool = True


@dataclass(frozen=True, slots=True)
class _Underway:
    """A save whose copy may not be complete."""

    copy: Copy
    handed_in: Future[None]


class Saver:
    """Owns slots, copying threads and the link to the writer.

    `store` is written to by a thread of this process, None by the node's writer process, at `hello.location`.
    `devices` are those that tensors may lie on. `when_committed` is told on rank 0 what a save cost: seconds of stall,
    seconds of writing.
    """

    def __init__(
        self,
        hello: Hello,
        me: Identity,
        events: EventLog,
        around: Surroundings,
        folder: Path,
        *,
        store: Store | None,
        devices: Devices = CUDA,
        when_committed: Callable[[float, float], None],
    ) -> None:
        self._me = me
        self._events = events
        sweep(folder)
        cores = len(os.sched_getaffinity(0))
        self._copier = Copier(max(1, cores // around.local_world_size), devices)
        self._surveyor = Surveyor(me.rank, me.world_size)
        # The same launch may open the same store twice, as tests and notebooks do.
        token = f"{me.token}-{os.getpid()}-{time.monotonic_ns()}"
        self._slots = SlotPair(
            lambda index: folder / name_of(hello.location, token, me.rank, index), me.rank, self._copier
        )
        self._is_outlived = store is None
        self._is_replicated = hello.peer is not None
        line: Line = (
            ThreadLine(store)
            if store is not None
            else ProcessLine(folder, hello.location, linger_s=around.linger_s, is_first=around.local_rank == 0)
        )
        self._link = WriterLink(hello, line, tell_lost=self._tell_lost, when_committed=when_committed)
        self._finisher = ThreadPoolExecutor(1, "checkpoint-finish")
        self._underway: _Underway | None = None
        self.serial = 0
        self.skipped = 0

    def prepare(self, state: Mapping[str, object]) -> None:
        """Take the memory for saves of this state, its optimizers' part too where they have not made it yet.

        Raises:
            CheckpointError: there is no memory, or a value cannot be saved.
        """
        sight = self._surveyor.look(state)
        try:
            self._slots.prepare(sight, foreseen=_foreseen(state, self._me.world_size))
        except OSError as error:
            raise CheckpointError(f"there is no memory for two snapshots of the state: {error}") from error

    def save(
        self,
        ref: CheckpointRef,
        state: Mapping[str, object],
        notes: Notes,
        *,
        manner: Manner,
        began: float,
    ) -> None:
        """Copy the state and hand it in. Without a free slot wait for one if it `must` be, else skip the save.

        Raises:
            CheckpointError: a value of the state cannot be saved.
        """
        self.finish()
        self.serial = max(self.serial + 1, ref.step)
        index = self._slots.free()
        if self._is_replicated and not manner.durable and not self._slots.are_all_free():
            # Then the peer has not got the last one yet, and without that the two nodes may hold no common step.
            index = None
        if index is None and manner.must:
            self._link.wait(lambda: self._slots.free() is not None)
            index = self._slots.free()
            self._events.write("stalled", step=ref.step, seconds=time.monotonic() - began)
        if index is None:
            self.skipped += 1
            self._events.write("skipped_save", step=ref.step, skipped=self.skipped)
            if manner.durable:
                self._link.miss(Missed(self.serial, ref.step, f"rank {self._me.rank} skipped it: both slots are busy"))
            return
        try:
            self._fill(index, ref, state, notes, manner, began=began)
        except CheckpointError as error:
            if manner.durable:
                self._link.miss(Missed(self.serial, ref.step, str(error)))
            raise
        except (OSError, torch.OutOfMemoryError) as error:
            self._give_up(ref, self.serial, error, durable=manner.durable)

    def miss(self, step: int, why: str) -> None:
        """Take no part in the save of a step that is over, and let the other ranks know."""
        self.finish()
        self.serial = max(self.serial + 1, step)
        self._link.miss(Missed(self.serial, step, f"rank {self._me.rank} {why}"))

    def hold(self) -> None:
        """Return when the tensors of the last save may change (on CUDA: by work queued from now on)."""
        if self._underway is not None:
            self._underway.copy.hold()

    def finish(self) -> None:
        """Return when the last save is handed in."""
        underway, self._underway = self._underway, None
        if underway is not None:
            underway.handed_in.result()

    def wait(self, deadline_s: float | None = None) -> None:
        """Wait until every save here is persisted, and on rank 0 committed, or has failed."""
        self.finish()
        self._link.wait(self._link.has_settled_all, deadline_s)

    def has_failed(self) -> bool:
        """Whether the last save is known to have failed."""
        return self._link.has_failed(self.serial)

    def close(self, *, abandon: bool = False) -> None:
        """Give memory and threads back; with `abandon` a writer process finishes what it can, a thread gives it up."""
        self.finish()
        is_left_behind = abandon and self._is_outlived
        self._link.close(leave=None if is_left_behind else Bye(abandon))
        self._slots.close(remove=not is_left_behind)
        self._finisher.shutdown()
        self._copier.close()

    def _fill(
        self,
        index: int,
        ref: CheckpointRef,
        state: Mapping[str, object],
        notes: Notes,
        manner: Manner,
        *,
        began: float,
    ) -> None:
        sight = self._surveyor.look(state)
        copy = self._slots.fill(index, sight, join=not manner.overlap)
        if manner.durable:
            self._events.write("save_started", step=ref.step)
        finish = self._finishing(index, sight, ref, notes, copy, manner, began=began)
        if manner.overlap:
            self._underway = _Underway(copy, self._finisher.submit(finish))
        else:
            finish()

    def _finishing(
        self,
        index: int,
        sight: Sight,
        ref: CheckpointRef,
        notes: Notes,
        copy: Copy,
        manner: Manner,
        *,
        began: float,
    ) -> Callable[[], None]:
        me, serial = self._me, self.serial
        self._slots.seal(index, sight, ref, notes, launch=me.token, serial=serial, world_size=me.world_size)
        held_s = time.monotonic() - began

        def finish() -> None:
            try:
                copy.wait()
            except RuntimeError as error:
                # A device answers so when anything before has failed, which the training's next step will tell better.
                self._give_up(ref, serial, error, durable=manner.durable)
                return
            slab = self._slots.slab(index)
            slab.word = Word.FULL
            stall_s = held_s if manner.overlap else time.monotonic() - began
            self._link.hand_in(Saved(serial, ref.step, str(slab.path), stall_s, manner.durable), slab)

        return finish

    def _give_up(self, ref: CheckpointRef, serial: int, error: Exception, *, durable: bool) -> None:
        if not durable:
            _log.warning("snapshot for memory failed step=%d why=%s", ref.step, error)
            return
        self._tell_lost(ref.step, str(error))
        self._link.miss(Missed(serial, ref.step, f"rank {self._me.rank}: {error}"))

    def _tell_lost(self, step: int, why: str) -> None:
        self._events.write("save_failed", step=step, message=why)


def _foreseen(state: Mapping[str, object], world_size: int) -> int:
    """Bytes that optimizers without state will likely add to this rank's share after their first step."""
    found = 0
    for value in state.values():
        if isinstance(value, torch.optim.Optimizer) and not value.state:
            for parameter in (each for group in value.param_groups for each in group["params"]):
                is_shared = not isinstance(parameter, DTensor)
                local = parameter if is_shared else parameter.to_local()
                size = local.numel() * local.element_size()
                found += _MOMENTS * (size // world_size if is_shared else size) + (_MOMENTS + 1) * _ITEM_BYTES
    return found
