# SPDX-License-Identifier: Apache-2.0
"""Reads pickles for the numbers and names in them, and runs nothing: every class and function is a stand-in.

A pickle is a program that may call anything it names (docs.python.org/3/library/pickle.html). Here nothing is looked
up or imported: whatever a pickle names becomes a stand-in that only remembers what it was given.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import zipfile
from typing import IO, Any

_MOST_BYTES = 1 << 30
_BINARY_NUMBER = re.compile(rb"r(?=(.{4}))", re.DOTALL)
"""LONG_BINPUT; looked ahead, since one may begin within what looks like another."""
_TEXT_NUMBER = re.compile(rb"p(\d+)\n")
"""PUT, of protocol 0."""
_LONGEST_NUMBER = 20


class Inert:
    """In the place of an object of any class: `given` are its arguments, `fields` what its state says by name."""

    given: tuple[object, ...]
    fields: dict[str, object]

    def __new__(cls, *given: object, **_named: object) -> Inert:
        made = super().__new__(cls)
        made.given = given
        made.fields = {}
        return made

    def __setstate__(self, state: object) -> None:
        # A class with slots has a pair: the state of its dict, and that of its slots.
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.fields.update({str(name): value for name, value in part.items()})

    def __call__(self, *given: object, **_named: object) -> Inert:
        return Inert(*given)

    def __setitem__(self, _key: object, _value: object) -> None:
        """An item of a mapping of another class; nobody asks for it."""

    def append(self, _item: object) -> None:
        """An item of a list of another class; nobody asks for it."""

    def extend(self, _items: object) -> None:
        """As `append`."""

    def add(self, _item: object) -> None:
        """As `append`."""


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        """A new stand-in for each name, without looking whether there is such a thing."""
        return type(global_name, (Inert,), {"__module__": f"inert.{module_name}"})

    def persistent_load(self, _pid: object) -> object:
        """A tensor's storage in a file of `torch.save`."""
        return Inert()


def read_pickle(payload: bytes) -> object:
    """What a pickle holds: plain values, and `Inert` for all else.

    Raises:
        ValueError: it is damaged.
    """
    if _may_hoard(payload) and _hoards(payload):
        raise ValueError("it is damaged: it numbers a value beyond its own length")
    try:
        return _Reader(io.BytesIO(payload)).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        raise ValueError(f"it is damaged: {error!r}") from error


def _may_hoard(payload: bytes) -> bool:
    """Whether some bytes look like a value that is numbered beyond the pickle's length; they may be those of a text.

    Python's reader takes memory for as many values as the highest number says, up to 64 GB for six bytes.
    """
    binary = (int.from_bytes(found[1], "little") for found in _BINARY_NUMBER.finditer(payload))
    text = (
        int(found[1]) if len(found[1]) < _LONGEST_NUMBER else len(payload) for found in _TEXT_NUMBER.finditer(payload)
    )
    return any(number >= len(payload) for number in (*binary, *text))


def _hoards(payload: bytes) -> bool:
    """As `_may_hoard`, and sure, by reading operation for operation; slow."""
    try:
        return any(
            isinstance(argument, int) and argument >= len(payload)
            for operation, argument, _ in pickletools.genops(payload)
            if operation.name in ("PUT", "LONG_BINPUT")
        )
    except (ValueError, IndexError, UnicodeDecodeError):
        return True


def read_torch_file(stream: IO[bytes]) -> object:
    """What a file of `torch.save` holds without its tensors; None for one older than the zip format (PyTorch 1.6).

    Raises:
        ValueError: it is damaged.
        OSError: it cannot be read.
    """
    if not zipfile.is_zipfile(stream):
        return None
    try:
        with zipfile.ZipFile(stream) as archive:
            record = next((each for each in archive.infolist() if each.filename.endswith("/data.pkl")), None)
            if record is None or record.file_size > _MOST_BYTES:
                return None
            return read_pickle(archive.read(record))
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is damaged: {error}") from error


def field(value: object, name: str) -> object:
    """A field of a stand-in or of a dict; None when it has none."""
    if isinstance(value, Inert):
        return value.fields.get(name)
    return value.get(name) if isinstance(value, dict) else None


def number(value: object, name: str) -> int | None:
    """A field that is a whole number; None when there is none."""
    found = field(value, name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
