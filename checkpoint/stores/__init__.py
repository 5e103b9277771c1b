# SPDX-License-Identifier: Apache-2.0
"""The stores that checkpoints can lie in, by URI scheme; a plain path is `file`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from checkpoint.api import Store, StoreError
from checkpoint.stores.posix import PosixStore

__all__ = ["PosixStore", "open_store"]


def _open_posix(rest: str) -> Store:
    return PosixStore(Path(unquote(rest)))


_STORES: dict[str, Callable[[str], Store]] = {"file": _open_posix}


def open_store(uri: str) -> Store:
    """Open the store that a path or URI names, without touching it.

    Raises:
        StoreError: the scheme is not one that works.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return PosixStore(Path(uri).expanduser())
    if scheme not in _STORES:
        known = ", ".join(f"{name}://" for name in sorted(_STORES))
        raise StoreError(f"{uri}: no store for the scheme {scheme!r}; use a path, or one of: {known}")
    return _STORES[scheme](rest)
