# SPDX-License-Identifier: Apache-2.0
"""The commit marker and the fence as JSON, and the checksum of files.

A manifest is accepted only as exactly the bytes that its encoder writes, so that a changed byte is noticed in it as
it is in the files that it lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from checkpoint.api import CheckpointRef, CommittedCheckpoint, DamagedFile, Fence, Store, StoreError

FENCE = "FENCE.json"
MANIFEST = "manifest.json"
METADATA = ".metadata"
STRUCTURE = "structure.json"
_VERSION = 1
_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and checksum (xxh3, 128 bits, in hex) of one file."""

    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a committed checkpoint consists of; its presence under the final name is the commit."""

    run: str
    attempt: int
    step: int
    world_size: int
    position: int | None
    skipped: tuple[tuple[int, int], ...]
    healthy: bool | None
    created_at: float
    files: Mapping[str, FileRecord]

    @property
    def ref(self) -> CheckpointRef:
        return CheckpointRef(self.step, self.attempt)

    @property
    def bytes(self) -> int:
        return sum(record.bytes for record in self.files.values())

    def committed(self, uri: str) -> CommittedCheckpoint:
        """The manifest's facts in the form that the catalogue hands out; `uri` is the checkpoint's own."""
        return CommittedCheckpoint(
            step=self.step,
            attempt=self.attempt,
            at=self.created_at,
            position=self.position,
            skipped=self.skipped,
            healthy=self.healthy,
            bytes=self.bytes,
            world_size=self.world_size,
            uri=uri,
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """Canonical JSON of a manifest, with a checksum of its own content."""
    content = {
        "version": _VERSION,
        "run": manifest.run,
        "attempt": manifest.attempt,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "position": manifest.position,
        "skipped": [list(each) for each in manifest.skipped],
        "healthy": manifest.healthy,
        "created_at": manifest.created_at,
        "files": {name: {"bytes": each.bytes, "xxh3": each.xxh3} for name, each in sorted(manifest.files.items())},
    }
    return _canonical({**content, "xxh3": xxhash.xxh3_128_hexdigest(_canonical(content))})


def decode_manifest(payload: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ValueError: it is damaged, or of a version that this library does not know.
    """
    content = _known_version(payload)
    try:
        manifest = Manifest(
            run=content["run"],
            attempt=content["attempt"],
            step=content["step"],
            world_size=content["world_size"],
            position=content["position"],
            skipped=tuple((start, end) for start, end in content["skipped"]),
            healthy=content["healthy"],
            created_at=content["created_at"],
            files={name: FileRecord(each["bytes"], each["xxh3"]) for name, each in content["files"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a field is missing or of the wrong type: {error}") from error
    if encode_manifest(manifest) != payload:
        raise ValueError("its content does not match its own checksum")
    return manifest


def encode_fence(fence: Fence) -> bytes:
    """Canonical JSON of a fence."""
    return _canonical(
        {
            "version": _VERSION,
            "attempt": fence.attempt,
            "resume_step": fence.resume_step,
            "resume_attempt": fence.resume_attempt,
            "sealed": [[ref.step, ref.attempt] for ref in fence.sealed],
            "controller": fence.controller,
            "unhealthy": [[ref.step, ref.attempt] for ref in fence.unhealthy],
        }
    )


def decode_fence(payload: bytes) -> Fence:
    """Read a fence, however it is laid out: a person may have to write one.

    Raises:
        ValueError: it is damaged, or of a version that this library does not know.
    """
    content = _known_version(payload)
    try:
        fence = Fence(
            attempt=int(content["attempt"]),
            resume_step=content["resume_step"],
            resume_attempt=content["resume_attempt"],
            sealed=_refs(content["sealed"]),
            controller=content["controller"],
            unhealthy=_refs(content.get("unhealthy", [])),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or of the wrong type: {error}") from error
    return fence


def _refs(pairs: list[list[int]]) -> tuple[CheckpointRef, ...]:
    return tuple(CheckpointRef(int(step), int(attempt)) for step, attempt in pairs)


def load_fence(store: Store) -> Fence | None:
    """The store's fence, or None when no attempt has opened it yet.

    Raises:
        StoreError: there is a fence that cannot be read.
    """
    try:
        payload = store.read(FENCE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return decode_fence(payload)
    except ValueError as error:
        raise StoreError(
            f"{store.location}/{FENCE} cannot be read: {error}; put back a copy, or write one that names the newest "
            "attempt and the [step, attempt] pairs to keep"
        ) from error


def load_manifest(store: Store, folder: str) -> Manifest:
    """The manifest in a folder.

    Raises:
        FileNotFoundError: there is none, so the folder is not a committed checkpoint.
        ValueError: it is damaged.
    """
    return decode_manifest(store.read(f"{folder}/{MANIFEST}"))


def checksum(store: Store, name: str, told: Callable[[int], object] | None = None) -> str:
    """xxh3 (128 bits, hex) of a file's bytes; `told` is called with the size of each block."""
    digest = xxhash.xxh3_128()
    with store.open(name) as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
            if told is not None:
                told(len(block))
    return digest.hexdigest()


def short_digest(text: str) -> str:
    """A name of 16 letters and digits for any text."""
    return xxhash.xxh3_64_hexdigest(text.encode())


def damaged_files(store: Store, folder: str, *, told: Callable[[int], object] | None = None) -> list[DamagedFile]:
    """Compare a committed folder with its manifest, reading every byte; empty when it is whole.

    A file that may not be read is an error and not damage.

    Raises:
        PermissionError: a file may not be read.
    """
    try:
        manifest = load_manifest(store, folder)
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        return [DamagedFile(MANIFEST, str(error))]
    found = []
    sizes = store.files(folder)
    for name, record in sorted(manifest.files.items()):
        why = size_damage(record, sizes.get(name)) or _content_damage(store, f"{folder}/{name}", record, told)
        if why:
            found.append(DamagedFile(name, why))
    return found


def size_damage(record: FileRecord, size: int | None) -> str:
    """What is wrong with a file's size (None: it is not there), or nothing."""
    if size is None:
        return "is missing"
    return "" if size == record.bytes else f"has {size} bytes instead of {record.bytes}"


def _content_damage(store: Store, name: str, record: FileRecord, told: Callable[[int], object] | None) -> str:
    try:
        seen = checksum(store, name, told)
    except PermissionError:
        raise
    except OSError as error:
        return f"cannot be read: {error}"
    return "" if seen == record.xxh3 else f"its checksum is {seen} instead of {record.xxh3}"


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"


def _known_version(payload: bytes) -> dict[str, Any]:
    content = json.loads(payload)
    version = content.get("version") if isinstance(content, dict) else None
    if version != _VERSION:
        raise ValueError(f"its version is {version!r}; this library knows {_VERSION}")
    return dict(content)
