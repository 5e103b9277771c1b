# SPDX-License-Identifier: Apache-2.0
"""What one rank has in its slabs that is whole, as the writer knows it: the node-memory tier.

Nothing is copied for it. A slab keeps its image until the rank fills it again, so the newest whole one is always there;
it is held on to when the rank dies, and given back when it has served.
"""

from __future__ import annotations

import threading
from pathlib import Path

import xxhash

from checkpoint.held import HeldImage
from checkpoint.manifest import FileRecord
from checkpoint.record import SaveRecord, serial_of
from checkpoint.slab import Slab, Word

_BLOCK_BYTES = 16 << 20


class Holding:
    """The slabs of one rank of one launch. The rank's thread of the writer uses it, and the writer's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[str, Slab] = {}
        self._images: dict[str, HeldImage] = {}

    def attach(self, path: str) -> Slab:
        """The slab at a path, mapped as its rank has it now.

        Raises:
            OSError: it is gone.
        """
        with self._lock:
            slab = self._slabs.get(path)
            if slab is None:
                slab = self._slabs[path] = Slab.attach(Path(path))
            slab.follow()
            return slab

    def find(self, path: str) -> Slab | None:
        """The slab, if it was ever attached."""
        return self._slabs.get(path)

    def note(self, slab: Slab, record: SaveRecord, file: FileRecord) -> HeldImage:
        """A slab's image is whole, and this is its checksum."""
        plan = record.plan
        image = HeldImage(record.ref, plan.launch, plan.serial, plan.rank, plan.world_size, str(slab.path), file)
        with self._lock:
            self._images[str(slab.path)] = image
        return image

    def adopt(self, slab: Slab, image: HeldImage) -> None:
        """Take over a slab that no rank uses, with what is in it."""
        with self._lock:
            self._slabs[image.slab] = slab
            self._images[image.slab] = image

    def forget(self, slab: Slab) -> None:
        """A slab is full of something else, whose checksum is not known yet."""
        with self._lock:
            self._images.pop(str(slab.path), None)

    def images(self) -> list[HeldImage]:
        """The images that are whole, oldest first; one that the rank is about to replace is not."""
        with self._lock:
            whole = [image for path, image in self._images.items() if _is_still(image, self._slabs[path])]
        return sorted(whole, key=lambda each: each.serial)

    def release(self, image: HeldImage) -> None:
        """Give the memory of an image back."""
        with self._lock:
            self._images.pop(image.slab, None)
            slab = self._slabs.pop(image.slab, None)
        if slab is not None:
            slab.close(remove=True)

    def trim(self) -> None:
        """Give the memory of everything back that is not whole; for a rank that is dead."""
        whole = {image.slab for image in self.images()}
        with self._lock:
            idle = [path for path in self._slabs if path not in whole]
            doomed = [self._slabs.pop(path) for path in idle]
            for path in idle:
                self._images.pop(path, None)
        for slab in doomed:
            slab.close(remove=True)

    def close(self, *, remove: bool = False) -> None:
        """Let go of all slabs; with `remove` their memory is given back, else it is their rank's to do so."""
        with self._lock:
            slabs = list(self._slabs.values())
            self._slabs.clear()
            self._images.clear()
        for slab in slabs:
            slab.close(remove=remove)


def _is_still(image: HeldImage, slab: Slab) -> bool:
    """Whether a slab still has that image: it may be filled anew, or already hold a newer one."""
    if slab.word is Word.FILLING:
        return False
    return slab.word is Word.FREE or serial_of(slab.record) == image.serial


def checksum_of(slab: Slab) -> FileRecord:
    """Size and checksum of a slab's image."""
    digest = xxhash.xxh3_128()
    length = slab.image_length
    with slab.image as image:
        for start in range(0, length, _BLOCK_BYTES):
            with image[start : min(start + _BLOCK_BYTES, length)] as block:
                digest.update(block)
    return FileRecord(length, digest.hexdigest())
