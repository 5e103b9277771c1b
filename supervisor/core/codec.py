# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses to plain JSON values and back, by their type hints.

The journal and the agents' port both use it, so that a fact is written one way only. A dataclass carries its class name
under the key `type`, by which a union of several classes is told apart; keys that a newer version wrote and this one
does not know are ignored. JSON has no infinity and no NaN, so those floats are written as the strings `inf`, `-inf`
and `nan`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

_NOT_FINITE = ("inf", "-inf", "nan")


class CodecError(ValueError):
    """A value that does not have the shape which the type asks for; the message names the type and the key."""


def encode(value: object) -> Any:
    """The JSON value (dict, list, str, number, bool or None) of a dataclass, tuple, mapping, enum or scalar."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decode(expected: type[T], raw: object) -> T:
    """The value of type `expected` that `encode` made `raw` of; raises CodecError."""
    return typing.cast("T", _decode(expected, raw, expected.__name__))


def decode_union(members: Mapping[str, type[T]], raw: object) -> T:
    """One of several dataclasses, chosen by the key `type`; raises CodecError for an unknown one."""
    if not isinstance(raw, dict):
        raise CodecError(f"expected an object with a key 'type', got {type(raw).__name__}")
    member = members.get(str(raw.get("type")))
    if member is None:
        raise CodecError(f"unknown type {raw.get('type')!r}; known types: {', '.join(sorted(members))}")
    return decode(member, raw)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(expected: Any, raw: object, where: str) -> object:
    if dataclasses.is_dataclass(expected) and isinstance(expected, type):
        return _decode_dataclass(expected, raw, where)
    origin = typing.get_origin(expected)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(expected), raw, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(expected), raw, where)
    if origin is frozenset:
        return frozenset(_decode_tuple((*typing.get_args(expected), ...), raw, where))
    if origin in (dict, Mapping) or _is_mapping(origin):
        if not isinstance(raw, dict):
            raise CodecError(f"{where}: expected an object, got {type(raw).__name__}")
        value_type = typing.get_args(expected)[1]
        return {str(key): _decode(value_type, item, f"{where}.{key}") for key, item in raw.items()}
    return _decode_scalar(expected, raw, where)


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _decode_dataclass(expected: type, raw: object, where: str) -> object:
    if not isinstance(raw, dict):
        raise CodecError(f"{where}: expected an object, got {type(raw).__name__}")
    hints = _hints(expected)
    known = {f.name: f for f in dataclasses.fields(expected)}
    values = {name: _decode(hints[name], raw[name], f"{where}.{name}") for name in known if name in raw}
    try:
        return expected(**values)
    except (TypeError, ValueError) as error:
        raise CodecError(f"{where}: {error}") from None


def _decode_union(members: tuple[Any, ...], raw: object, where: str) -> object:
    if raw is None and type(None) in members:
        return None
    present = [member for member in members if member is not type(None)]
    if len(present) == 1:
        return _decode(present[0], raw, where)
    by_type = {member.__name__: member for member in present}
    name = raw.get("type") if isinstance(raw, dict) else None
    if name not in by_type:
        raise CodecError(f"{where}: expected one of {', '.join(sorted(by_type))}, got {raw!r}")
    return _decode(by_type[name], raw, where)


def _decode_tuple(members: tuple[Any, ...], raw: object, where: str) -> tuple[object, ...]:
    if not isinstance(raw, list):
        raise CodecError(f"{where}: expected a list, got {type(raw).__name__}")
    if len(members) == 2 and members[1] is Ellipsis:
        return tuple(_decode(members[0], item, f"{where}[{i}]") for i, item in enumerate(raw))
    if len(members) != len(raw):
        raise CodecError(f"{where}: expected {len(members)} items, got {len(raw)}")
    return tuple(
        _decode(member, item, f"{where}[{i}]") for i, (member, item) in enumerate(zip(members, raw, strict=True))
    )


def _decode_scalar(expected: Any, raw: object, where: str) -> object:
    if expected in (Any, object):
        return raw
    if isinstance(expected, type) and issubclass(expected, enum.Enum):
        try:
            return expected(raw)
        except ValueError:
            raise CodecError(f"{where}: {raw!r} is not a {expected.__name__}") from None
    if expected is float and not isinstance(raw, bool) and (isinstance(raw, (int, float)) or raw in _NOT_FINITE):
        return float(raw)
    if isinstance(expected, type) and isinstance(raw, expected) and not (expected is int and isinstance(raw, bool)):
        return raw
    raise CodecError(f"{where}: expected {getattr(expected, '__name__', expected)}, got {raw!r}")
