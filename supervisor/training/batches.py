# SPDX-License-Identifier: Apache-2.0
"""Takes the batches at wanted positions out of whatever loader the script has.

A loader with random access never loads a skipped batch; one that can start anywhere is started anew behind a
skipped range; a plain iterable is read through, and what is not wanted is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Final, Protocol, TypeVar, cast

BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class Indexed(Protocol[BatchT_co]):
    """Random access; with `__len__` the data ends there, else at the first IndexError."""

    def __getitem__(self, index: int, /) -> BatchT_co: ...


class Seekable(Protocol[BatchT_co]):
    """Iteration that can begin at any position."""

    def iter_from(self, index: int, /) -> Iterator[BatchT_co]: ...


Loader = Indexed[BatchT] | Seekable[BatchT] | Iterable[BatchT]


class EndOfData:
    """What a fetch returns behind the last batch."""


END: Final = EndOfData()

Fetch = Callable[[int], "BatchT | EndOfData"]
"""Returns the batch at a position; positions must be asked for in rising order."""


def fetcher(loader: Loader[BatchT]) -> Fetch[BatchT]:
    """Return the cheapest way to get batches by position out of `loader`.

    Raises:
        TypeError: the loader can be neither indexed nor iterated.
    """
    if is_indexed(loader):
        return _indexed(cast("Indexed[BatchT]", loader))
    if hasattr(loader, "iter_from"):
        return _seeking(cast("Seekable[BatchT]", loader))
    if hasattr(loader, "__iter__"):
        return _reading(cast("Iterable[BatchT]", loader))
    raise TypeError(f"batches() needs a loader with __getitem__, iter_from or __iter__, not {type(loader).__name__}")


def is_indexed(loader: object) -> bool:
    """Tell whether the loader gives batches by index.

    `torch.utils.data.IterableDataset` inherits a `__getitem__` that only raises: it iterates and has no length.
    """
    if not hasattr(loader, "__getitem__"):
        return False
    return hasattr(loader, "__len__") or not hasattr(loader, "__iter__")


def is_read_through(loader: object) -> bool:
    """Tell whether reaching a position means to load everything before it."""
    return not is_indexed(loader) and not hasattr(loader, "iter_from")


def _indexed(loader: Indexed[BatchT]) -> Fetch[BatchT]:
    length = len(loader) if isinstance(loader, Sized) else None

    def fetch(position: int) -> BatchT | EndOfData:
        if length is not None:
            return loader[position] if position < length else END
        try:
            return loader[position]
        except IndexError:
            return END

    return fetch


def _seeking(loader: Seekable[BatchT]) -> Fetch[BatchT]:
    iterator: Iterator[BatchT] | None = None
    upcoming = 0

    def fetch(position: int) -> BatchT | EndOfData:
        nonlocal iterator, upcoming
        if iterator is None or position != upcoming:
            iterator = iter(loader.iter_from(position))
        upcoming = position + 1
        return next(iterator, END)

    return fetch


def _reading(loader: Iterable[BatchT]) -> Fetch[BatchT]:
    numbered = enumerate(loader)

    def fetch(position: int) -> BatchT | EndOfData:
        return next((batch for index, batch in numbered if index == position), END)

    return fetch
