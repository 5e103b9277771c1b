# SPDX-License-Identifier: Apache-2.0
"""Writes docs/config.md from the configuration's models: `python -m supervisor.config_docs > docs/config.md`.

A test compares the file with what this prints, so the two cannot drift apart.
"""

from __future__ import annotations

import enum
import sys
import typing
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from supervisor.config_models import BudgetSection, BudgetsSection, ConfigurationFile

_HEAD = """\
# Configuration

<!-- Made from supervisor/config_models.py by `python -m supervisor.config_docs > docs/config.md`; do not edit. -->

`supervisor run -c FILE` reads one TOML file. Every key is optional, an unknown one is an error, and what the
command line gives holds instead of what the file says. All times are seconds.

```toml
[run]
name = "gpt-1b"
spares = 1

[policy]
mode = "act"
powers = ["stop", "relaunch", "rollback"]

[policy.budgets]
infrastructure = { count = 40, window_s = 86400 }

[detection]
pauses = { evaluation = 900 }

[environment]
NCCL_DEBUG = "INFO"
```
"""


def render() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, field in ConfigurationFile.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            parts.append(_section(name, model))
        else:
            parts.append(f"## [{name}]\n\n{_text(field)}\n")
    return "\n".join(parts)


def _section(name: str, model: type[BaseModel]) -> str:
    rows = [f"## [{name}]", "", " ".join((model.__doc__ or "").split()), "", "| key | allowed | default | meaning |"]
    rows.append("|---|---|---|---|")
    rows += [_row(key, field) for key, field in model.model_fields.items()]
    rows.append("")
    inner = [field.annotation for field in model.model_fields.values()]
    if BudgetsSection in inner:
        rows.append(_section(f"{name}.budgets", BudgetsSection).replace("## [", "### [", 1))
        rows.append(_section(f"{name}.budgets.CATEGORY", BudgetSection).replace("## [", "### [", 1))
    return "\n".join(rows)


def _row(key: str, field: FieldInfo) -> str:
    cells = (f"`{key}`", _allowed(field), _default(field), _text(field))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _text(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, BudgetsSection):
        return "below"
    return "none" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: object) -> str:
    if isinstance(value, enum.Enum):
        return _toml(value.value)
    if isinstance(value, BaseModel):
        return _toml({name: getattr(value, name) for name in type(value).model_fields})
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"{value:g}"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, frozenset):
        return "[" + ", ".join(sorted(_toml(item) for item in value)) + "]"
    return f'"{value}"'


def _allowed(field: FieldInfo) -> str:
    limits = [_limit(constraint) for constraint in field.metadata]
    return ", ".join([_type(field.annotation), *(limit for limit in limits if limit)])


def _limit(constraint: Any) -> str:
    for name, words in (("gt", "above {:g}"), ("ge", "at least {:g}"), ("min_length", "not empty")):
        if hasattr(constraint, name):
            return words.format(getattr(constraint, name))
    return "letters, digits, `.`, `_`, `-`" if hasattr(constraint, "pattern") else ""


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{item}`" for item in arguments)
    if origin is frozenset:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"table of {_type(arguments[1])}"
    if arguments:
        return _type(next(each for each in arguments if each is not type(None)))
    if issubclass(annotation, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    return {str: "string", bool: "boolean", int: "integer", float: "number"}.get(annotation, "table")


if __name__ == "__main__":
    sys.stdout.write(render())
