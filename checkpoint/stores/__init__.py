# SPDX-License-Identifier: Apache-2.0
"""The stores that checkpoints can lie in, by URI scheme; a plain path is `file`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from checkpoint.api import Store, StoreError
from checkpoint.stores.posix import PosixStore

__all__ = ["PosixStore", "open_store"]


def _open_posix(uri: str) -> Store:
    return PosixStore(Path(unquote(uri.partition("://")[2])))


def _open_s3(uri: str) -> Store:
    try:
        from checkpoint.stores.object_store import ObjectStore
        from checkpoint.stores.retrying import RetriedObjects
        from checkpoint.stores.s3 import open_s3
    except ImportError as error:
        raise StoreError(f"{uri}: {error.name} is missing; pip install 'pretraining-supervisor[s3]'") from error
    return ObjectStore(RetriedObjects(open_s3(uri), deadline_s=_patience_s()))


def _open_fsspec(uri: str) -> Store:
    """Whatever fsspec has a file system for.

    Raises:
        StoreError: it has none for the scheme, or that needs a package that is missing.
    """
    try:
        import fsspec

        from checkpoint.stores.any_fsspec import FsspecObjects
        from checkpoint.stores.object_store import ObjectStore
        from checkpoint.stores.retrying import RetriedObjects

        filesystem, root = fsspec.core.url_to_fs(uri, use_listings_cache=False)
    except ImportError as error:
        raise StoreError(f"{uri}: {error}; pip install what fsspec needs for it") from error
    except ValueError as error:
        scheme, known = uri.partition("://")[0], ", ".join(f"{name}://" for name in sorted(_STORES))
        raise StoreError(
            f"{uri}: no store for the scheme {scheme!r}; use a path, one of {known}, or a scheme that fsspec knows"
        ) from error
    return ObjectStore(RetriedObjects(FsspecObjects(filesystem, root, uri), deadline_s=_patience_s()))


def _patience_s() -> float:
    """How long a store that is away is tried again, by `CHECKPOINT_STORE_PATIENCE_S`.

    Raises:
        StoreError: it is no number.
    """
    text = os.environ.get("CHECKPOINT_STORE_PATIENCE_S") or "60"
    try:
        return float(text)
    except ValueError as error:
        raise StoreError(f"CHECKPOINT_STORE_PATIENCE_S={text!r} must be a number of seconds") from error


_STORES: dict[str, Callable[[str], Store]] = {"file": _open_posix, "s3": _open_s3}


def open_store(uri: str) -> Store:
    """Open the store that a path or URI names, without touching it.

    Raises:
        StoreError: the scheme is not one that works, or a package for it is missing.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return PosixStore(Path(uri).expanduser())
    if scheme != "file" and not rest.strip("/"):
        raise StoreError(f"{uri}: a bucket is missing; write {scheme}://bucket/prefix")
    return _STORES.get(scheme, _open_fsspec)(uri.rstrip("/"))
