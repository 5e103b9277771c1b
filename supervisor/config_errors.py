# SPDX-License-Identifier: Apache-2.0
"""From pydantic's account of a wrong configuration to one line that a person can act on."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

_SHOWN_CHARS = 120


def explained(error: ErrorDetails, root: type[BaseModel], written: Mapping[str, Any], source: str) -> str:
    """What is wrong, where, and what is allowed; `source` is blamed only for what is in `written`."""
    keys = [str(part) for part in error["loc"] if part != "[key]"]
    present = keys[:-1] if error["type"] == "missing" else keys
    origin = source if _is_in(written, present) else "the command line"
    if error["type"] == "extra_forbidden":
        return _unknown(root, keys, origin)
    place = f"[{'.'.join(keys[:-1])}] {keys[-1]}" if len(keys) > 1 else f"[{''.join(keys)}]"
    value = error["input"]
    is_value = not isinstance(value, dict) and "[key]" not in error["loc"] and error["type"] != "missing"
    return f"{origin}: {place}{f' = {_shown(value)}' if is_value else ''}: {_wanted(error)}"


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}... ({len(text)} characters)"


def _wanted(error: ErrorDetails) -> str:
    match error["type"]:
        case "missing":
            return "is missing; give it too"
        case "model_type" | "dict_type":
            return "expected a table"
        case "frozen_set_type":
            return "expected a list"
        case "string_pattern_mismatch":
            if "[key]" in error["loc"]:
                return "expected a name of letters, digits and `_`"
            return (
                "expected a name of at most 100 letters, digits, `.`, `_` and `-` that begins with a letter or a "
                "digit, for example gpt-7b"
            )
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case _:
            return error["msg"].replace("Input should be", "expected").replace("String should", "must")


def _unknown(root: type[BaseModel], keys: list[str], origin: str) -> str:
    section, key = keys[:-1], keys[-1]
    known = _keys_of(root, section)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    if not section:
        return f"{origin}: unknown section [{key}]; {hint}"
    elsewhere = [name for name in root.model_fields if name != section[0] and key in _keys_of(root, [name])]
    if elsewhere and (not near or near[0] != key):
        hint = f"it belongs to [{elsewhere[0]}]"
    return f"{origin}: unknown key {key!r} in section [{'.'.join(section)}]; {hint}"


def _keys_of(root: type[BaseModel], section: list[str]) -> list[str]:
    model = root
    for name in section:
        inner = model.model_fields[name].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def _is_in(written: Mapping[str, Any], keys: list[str]) -> bool:
    at: Any = written
    for key in keys:
        if not isinstance(at, dict) or key not in at:
            return not isinstance(at, dict)
        at = at[key]
    return True
