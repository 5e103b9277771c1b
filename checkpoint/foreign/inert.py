# SPDX-License-Identifier: Apache-2.0
"""Reads pickles for the numbers and names in them, and runs nothing: every class and function is a stand-in.

A pickle is a program that may call anything it names (docs.python.org/3/library/pickle.html). Here nothing is looked
up or imported: whatever a pickle names becomes a stand-in that only remembers what it was given.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from typing import IO, Any

_MOST_BYTES = 1 << 30
_LONGEST_NUMBER = 20
_PUT, _LONG_BINPUT, _STOP = pickle.PUT[0], pickle.LONG_BINPUT[0], pickle.STOP[0]
_TWO_LINES = frozenset({pickle.GLOBAL[0], pickle.INST[0]})
_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""Bytes of the length that stands before an argument."""
_BYTES_BY_CODE = {ord(each.code): 0 if each.arg is None else each.arg.n for each in pickletools.opcodes}
_ARGUMENT_BYTES = [_BYTES_BY_CODE.get(code, 0) for code in range(256)]
"""Of each operation: how many bytes follow it, or how to tell."""


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
    if _hoards(payload):
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


def _hoards(payload: bytes) -> bool:
    """Whether a value is numbered beyond the pickle's length; True also where that cannot be told.

    Python's reader takes memory for as many values as the highest number says, up to 64 GB for six bytes.
    """
    at, size = 0, len(payload)
    while at < size:
        code = payload[at]
        length = _ARGUMENT_BYTES[code]
        if length >= 0:
            if code == _LONG_BINPUT and int.from_bytes(payload[at + 1 : at + 5], "little") >= size:
                return True
            at += 1 + length
        elif length == pickletools.UP_TO_NEWLINE:
            end = payload.find(b"\n", at)
            if code in _TWO_LINES and end >= 0:
                end = payload.find(b"\n", end + 1)
            if end < 0 or (code == _PUT and not _is_below(payload[at + 1 : end], size)):
                return True
            at = end + 1
        else:
            width = _WIDTHS[length]
            at += 1 + width + int.from_bytes(payload[at + 1 : at + 1 + width], "little")
        if code == _STOP:
            return False
    return False


def _is_below(digits: bytes, size: int) -> bool:
    return digits.isdigit() and len(digits) < _LONGEST_NUMBER and int(digits) < size


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
