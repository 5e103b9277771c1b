# SPDX-License-Identifier: Apache-2.0
"""A rank's two slabs: a save fills one while the writer still reads the other.

Making a slab, and changing its capacity, takes all the memory at once; a save then only copies.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from checkpoint.api import CheckpointRef
from checkpoint.copying import Copier, Copy
from checkpoint.cuda import Devices, PinError
from checkpoint.layout import Envelopes, ImageLayout, lay_out
from checkpoint.plan import RankPlan, WrittenItem
from checkpoint.record import Notes, encode_outline, encode_record, file_of
from checkpoint.slab import PAGE_BYTES, Slab, Word, slab_bytes
from checkpoint.snapshot import Outline, Sight

_log = logging.getLogger(__name__)
_COUNT = 2
_SLACK_BYTES = 64 << 10
"""Pickled values may grow by this much, and by as much again as they take, before a slab has to."""
_RECORD_BYTES = 64 << 10
_ITEM_BYTES = 1 << 10
"""Room for a record's first line: that of any run's skipped ranges, and an entry for each pickled value."""


class Drawing:
    """An outline with the places of its pieces, and its line of the record."""

    def __init__(self, outline: Outline, layout: ImageLayout, rank: int) -> None:
        self.outline = outline
        self.layout = layout
        self.offsets = [place.values for place in layout.places]
        items = [
            WrittenItem(piece.fqn, file_of(rank), place.start, place.envelope.length, piece.offsets, piece.shape)
            for piece, place in zip(outline.pieces, layout.places, strict=True)
        ]
        self.line = encode_outline(outline.tensors, outline.paths, items)


class Slot:
    """One slab with what is drawn in it."""

    def __init__(self, slab: Slab, devices: Devices) -> None:
        self.slab = slab
        self._devices = devices
        self._drawn: Drawing | None = None
        self._pinned_for: torch.device | None = None
        self._may_pin = True
        self._bytes = torch.frombuffer(slab.memory, dtype=torch.uint8)

    def fit(self, needed: int, capacity: int) -> None:
        """Take `capacity` bytes, unless what there is holds the needed ones and is not far more than that.

        Raises:
            OSError: there is no room.
        """
        if needed <= self.slab.capacity <= capacity * 1.25:
            return
        self._unpin()
        self._bytes = torch.empty(0, dtype=torch.uint8)
        try:
            self.slab.resize(capacity)
        finally:
            self._bytes = torch.frombuffer(self.slab.memory, dtype=torch.uint8)

    def draw(self, drawing: Drawing) -> None:
        """Write what a save of this layout leaves as it is."""
        if self._drawn is not drawing:
            self._drawn = None
            with memoryview(self.slab.memory)[PAGE_BYTES:] as image:
                drawing.layout.draw(image)
            self._drawn = drawing

    def copy(self, copier: Copier, drawing: Drawing, sight: Sight, *, join: bool) -> Copy:
        """Copy the tensors to their places."""
        self.pin_for(sight.sources)
        return copier.start(self._bytes[PAGE_BYTES:], drawing.offsets, sight.sources, join=join)

    def close(self, *, remove: bool) -> None:
        """Give the memory back; without `remove` the slab's file stays for the writer."""
        self._unpin()
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self.slab.close(remove=remove)

    def pin_for(self, sources: Sequence[torch.Tensor]) -> None:
        """Pin the memory if a source lies on a device. Where that is refused copies are slower, and as right."""
        if self._pinned_for is not None or not self._may_pin:
            return
        device = next((found for each in sources if (found := self._devices.device_of(each)) is not None), None)
        if device is None:
            return
        try:
            self._devices.pin(self._bytes, device)
            self._pinned_for = device
        except PinError as error:
            self._may_pin = False
            _log.warning(
                "snapshot's memory cannot be pinned, so that saves stall for a slow copy bytes=%d device=%s why=%s",
                self._bytes.numel(),
                device,
                error,
            )

    def _unpin(self) -> None:
        """A device that has failed refuses this, too, which must not hide why, nor keep the memory."""
        if self._pinned_for is not None:
            try:
                self._devices.unpin(self._bytes, self._pinned_for)
            except PinError as error:
                _log.warning("snapshot's memory stays pinned until this process ends why=%s", error)
        self._pinned_for = None
        self._may_pin = True


class SlotPair:
    """Both slots, made when the first state is seen. `name` gives a slab's path by its index."""

    def __init__(self, name: Callable[[int], Path], rank: int, copier: Copier) -> None:
        self._name = name
        self._rank = rank
        self._copier = copier
        self._slots: list[Slot] = []
        self._drawing: Drawing | None = None
        self._envelopes = Envelopes()
        self._serials = [0] * _COUNT

    def free(self) -> int | None:
        """The index of a slot that may be filled, None when the writer has all of them; 0 before there are any.

        Of two it is the older one, so that the newest whole snapshot stays until the next one is whole.
        """
        if not self._slots:
            return 0
        free = (i for i, slot in enumerate(self._slots) if slot.slab.word is not Word.FULL)
        return min(free, key=lambda index: self._serials[index], default=None)

    def are_all_free(self) -> bool:
        """Whether the writer has none of the slots."""
        return all(slot.slab.word is not Word.FULL for slot in self._slots)

    def prepare(self, sight: Sight, *, foreseen: int = 0) -> None:
        """Take the memory for both slots, `foreseen` bytes more than the state needs now, and draw its layout.

        Raises:
            OSError: there is no memory.
        """
        drawing = self._draw_up(sight.outline)
        capacity = self._capacity(drawing, sight.pickled, slack=True) + foreseen
        for _ in range(len(self._slots), _COUNT):
            self._slots.append(self._make(capacity))
        for slot in self._slots:
            if slot.slab.word is not Word.FULL:
                slot.fit(capacity, capacity)
                slot.draw(drawing)
                slot.pin_for(sight.sources)

    def fill(self, index: int, sight: Sight, *, join: bool) -> Copy:
        """Start a copy of the state in a free slot; `seal` has to follow it.

        Raises:
            OSError: there is no memory.
        """
        drawing = self._draw_up(sight.outline)
        if not self._slots:
            self.prepare(sight)
        slot = self._slots[index]
        slot.slab.word = Word.FILLING
        slot.fit(
            self._capacity(drawing, sight.pickled, slack=False), self._capacity(drawing, sight.pickled, slack=True)
        )
        slot.draw(drawing)
        return slot.copy(self._copier, drawing, sight, join=join)

    def seal(
        self, index: int, sight: Sight, ref: CheckpointRef, notes: Notes, *, launch: str, serial: int, world_size: int
    ) -> None:
        """Put pickled values and record behind the tensors; the slot is not yet FULL."""
        slot, drawing = self._slots[index], self._draw_up(sight.outline)
        self._serials[index] = serial
        end = drawing.layout.end
        items = []
        for fqn, payload in sight.pickled.items():
            slot.slab.memory[PAGE_BYTES + end : PAGE_BYTES + end + len(payload)] = payload
            items.append(WrittenItem(fqn, file_of(self._rank), end, len(payload)))
            end += len(payload)
        plan = RankPlan(launch, serial, self._rank, world_size, items=items)
        slot.slab.put_record(end, encode_record(ref, notes, plan, drawing.line))

    def slab(self, index: int) -> Slab:
        return self._slots[index].slab

    def close(self, *, remove: bool) -> None:
        """Give all memory back; without `remove` the slabs' files stay for the writer."""
        for slot in self._slots:
            slot.close(remove=remove)
        self._slots.clear()

    def _draw_up(self, outline: Outline) -> Drawing:
        if self._drawing is None or self._drawing.outline is not outline:
            layout = lay_out(((piece.dtype, piece.shape) for piece in outline.pieces), self._envelopes)
            self._drawing = Drawing(outline, layout, self._rank)
        return self._drawing

    def _capacity(self, drawing: Drawing, pickled: Mapping[str, bytes], *, slack: bool) -> int:
        tail = sum(map(len, pickled.values()))
        spare = tail + _SLACK_BYTES if slack else 0
        record = len(drawing.line) + _RECORD_BYTES + _ITEM_BYTES * len(pickled)
        return slab_bytes(drawing.layout.end + tail + spare, record)

    def _make(self, capacity: int) -> Slot:
        path = self._name(len(self._slots))
        try:
            return Slot(Slab.create(path, capacity), self._copier.devices)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOENT, errno.EROFS, errno.EACCES):
                raise
            _log.warning(
                "snapshot lies in unnamed memory, since its folder has no room: make that larger, or set "
                "CHECKPOINT_MEMORY to another folder in memory folder=%s bytes=%d why=%s",
                path.parent,
                capacity,
                error,
            )
            return Slot(Slab.create_unnamed(path, capacity), self._copier.devices)
