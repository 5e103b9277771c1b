# SPDX-License-Identifier: Apache-2.0
"""A store of checkpoints in an object store, which knows neither folders nor renaming.

A checkpoint's objects stay under one prefix `X/` for good; which folder they are is a role that small objects tell:

    X.tmp       there is neither of the two below
    X           there is `X/manifest.json`; it is put last, on the condition that there is none
    damaged-X   there is `X/manifest.role`, which holds this name; the manifest became `X/manifest.set-aside`
    deleted-X   there is `X/manifest.deleted`, which goes last

So a "rename" is one small object, and nobody ever sees a checkpoint half renamed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO, cast

from checkpoint.api import Sink
from checkpoint.lineage import DELETED_PREFIX, PARTIAL_SUFFIX, SET_ASIDE_PREFIX, is_committed_name, ref_of
from checkpoint.manifest import MANIFEST, load_fence
from checkpoint.stores.objects import Objects
from checkpoint.stores.ranges import RangeReader

_MANIFEST_START = "manifest."
_NEW_MANIFEST = "manifest.new"
_OLD_MANIFEST = "manifest.set-aside"
_SET_ASIDE, _DELETED = "manifest.role", "manifest.deleted"
_REMNANT_S = 6 * 3600.0
"""No file takes so long to be put that its writer could still be alive."""
_MARKERS = {_NEW_MANIFEST, _OLD_MANIFEST, _SET_ASIDE, _DELETED}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a folder's objects lie, and the object that its manifest is."""

    prefix: str
    manifest: str


class ObjectStore:
    """Plays folders over flat objects; see the module's text."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    @property
    def location(self) -> str:
        return self._objects.uri

    def folders(self) -> list[str]:
        found = []
        for prefix in self._objects.folders():
            role = self._role_of(prefix) if is_committed_name(prefix) else prefix
            # Some stores go on listing a prefix below which there is nothing any more.
            if not role.endswith(PARTIAL_SUFFIX) or self._objects.sizes(prefix):
                found.append(role)
        return sorted(found)

    def files(self, folder: str) -> dict[str, int]:
        place = _place_of(folder)
        if is_committed_name(place.prefix) and self._role_of(place.prefix) != folder:
            return {}
        found = self._objects.sizes(place.prefix)
        shown = {name: size for name, size in found.items() if name not in _MARKERS | {MANIFEST}}
        if place.manifest in found:
            shown[MANIFEST] = found[place.manifest]
        return shown

    def read(self, name: str) -> bytes:
        return self._objects.get(self._there(name))

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        key = self._there(name)
        size = self._objects.size(key)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, f"{self.location}/{key} is not there")
        return cast("IO[bytes]", RangeReader(lambda start, end: self._objects.get(key, start, end), size))

    def write(self, name: str, payload: bytes) -> None:
        self._objects.put(self._open_to_writers(name), payload)

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        sink = bytearray()

        class Gathering:
            def write(self, payload: bytes | memoryview) -> int:
                sink.extend(payload)
                return len(payload)

        yield Gathering()
        self._objects.put_large(self._open_to_writers(name), memoryview(sink))

    def put_buffer(self, name: str, payload: memoryview, length: int) -> None:
        with payload[:length] as counted:
            self._objects.put_large(self._open_to_writers(name), counted)

    def make_folder(self, folder: str) -> None:
        """There is nothing to make; but what is committed, or was, is not written to again.

        An attempt that opens the store makes "", and drops what dead writers have begun: long ago, or for an attempt
        that the fence has cut off.
        """
        if not folder:
            fence = load_fence(self)
            present = 0 if fence is None else fence.attempt

            def is_dead(key: str, age_s: float) -> bool:
                ref = ref_of(key.split("/")[0])
                return age_s > _REMNANT_S or (ref is not None and ref.attempt < present)

            self._objects.drop_unfinished(is_dead)
            return
        self._open_to_writers(f"{folder}/")

    def rename(self, old: str, new: str) -> None:
        """From one role of a checkpoint to another.

        Raises:
            FileExistsError: the new role is taken.
            FileNotFoundError: it has not got the old one.
        """
        place = _place_of(old)
        if _place_of(new).prefix != place.prefix or not is_committed_name(place.prefix):
            raise OSError(errno.EXDEV, f"{old} cannot become {new}: an object store renames no folders")
        prefix = place.prefix
        if new == prefix:
            self._objects.put_new(f"{prefix}/{MANIFEST}", self._objects.get(f"{prefix}/{place.manifest}"))
            self._objects.delete([f"{prefix}/{_NEW_MANIFEST}"])
            return
        if self._role_of(prefix) != old:
            raise FileNotFoundError(errno.ENOENT, f"{self.location}/{old} is not there")
        if new.startswith(DELETED_PREFIX):
            self._objects.put(f"{prefix}/{_DELETED}", new.encode())
        else:
            manifest = self._objects.get(f"{prefix}/{place.manifest}")
            self._objects.put(f"{prefix}/{_OLD_MANIFEST}", manifest)
            self._objects.put(f"{prefix}/{_SET_ASIDE}", new.encode())
        self._objects.delete([f"{prefix}/{MANIFEST}"])

    def remove(self, name: str) -> None:
        """An object; or a folder, if that is its role now: what tells the role goes last."""
        if "/" in name:
            self._objects.delete([_key_of(name)])
            return
        prefix = _place_of(name).prefix
        if is_committed_name(prefix) and self._role_of(prefix) != name:
            return
        found = self._objects.sizes(prefix)
        last = [each for each in (_SET_ASIDE, _DELETED) if each in found]
        if MANIFEST in found:
            self._objects.delete([f"{prefix}/{MANIFEST}"])
        self._objects.delete([f"{prefix}/{each}" for each in found if each not in last])
        self._objects.delete([f"{prefix}/{each}" for each in last] or [name])

    def _role_of(self, prefix: str) -> str:
        """The name of the folder that a checkpoint's objects are now; all that tells it comes in one listing."""
        found = self._objects.sizes(prefix, _MANIFEST_START)
        if _DELETED in found:
            return DELETED_PREFIX + prefix
        if MANIFEST in found:
            return prefix
        if _SET_ASIDE in found:
            return self._objects.get(f"{prefix}/{_SET_ASIDE}").decode()
        return prefix + PARTIAL_SUFFIX

    def _open_to_writers(self, name: str) -> str:
        """The key of a file that is to be written.

        Raises:
            FileExistsError: the checkpoint is committed, or was, so that a late writer must not touch it.
        """
        folder, separator, _ = name.rpartition("/")
        prefix = _place_of(folder).prefix
        if separator and is_committed_name(prefix) and self._role_of(prefix) != prefix + PARTIAL_SUFFIX:
            raise FileExistsError(errno.EEXIST, f"{self.location}/{prefix} is there already, and is never changed")
        return _key_of(name)

    def _there(self, name: str) -> str:
        """The key of a file that is read; its folder must have the role that its name says.

        Raises:
            FileNotFoundError: it has not.
        """
        folder, separator, _ = name.rpartition("/")
        prefix = _place_of(folder).prefix
        if separator and is_committed_name(prefix) and self._role_of(prefix) != folder:
            raise FileNotFoundError(errno.ENOENT, f"{self.location}/{name} is not there")
        return _key_of(name)


def _place_of(folder: str) -> _Place:
    if folder.endswith(PARTIAL_SUFFIX) and is_committed_name(folder.removesuffix(PARTIAL_SUFFIX)):
        return _Place(folder.removesuffix(PARTIAL_SUFFIX), _NEW_MANIFEST)
    if folder.startswith(DELETED_PREFIX) and is_committed_name(folder.removeprefix(DELETED_PREFIX)):
        return _Place(folder.removeprefix(DELETED_PREFIX), MANIFEST)
    if folder.startswith(SET_ASIDE_PREFIX):
        # Behind the checkpoint's own name there may be a number, when that name was taken.
        name = "-".join(folder.removeprefix(SET_ASIDE_PREFIX).split("-")[:3])
        if is_committed_name(name):
            return _Place(name, _OLD_MANIFEST)
    return _Place(folder, MANIFEST)


def _key_of(name: str) -> str:
    folder, separator, file = name.rpartition("/")
    place = _place_of(folder)
    return f"{place.prefix}{separator}{place.manifest if separator and file == MANIFEST else file}"
