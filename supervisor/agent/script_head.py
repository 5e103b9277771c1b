# SPDX-License-Identifier: Apache-2.0
"""What a training script imports at its top, and whether it prepares its environment for that, read from its source.

A rank that is forked from a warm interpreter has imported these modules before the script runs. A variable that the
script sets for them first (OMP_NUM_THREADS, TORCH_LOGS) would come too late there and must not.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

_IMPORTED_AHEAD = ("torch", "numpy", "checkpoint", "supervisor")
"""Packages of the script that are imported before the fork: none of them uses a device when it is loaded."""
_CHANGES = ("setdefault", "update", "pop", "popitem", "clear", "putenv", "unsetenv")


def imported_ahead(script: Path) -> tuple[str, ...]:
    """What the script imports at its top, `module` or `module:name`, that may be imported before it is forked.

    With torch goes torch._dynamo: DistributedDataParallel and the optimizers load it when they are first used, and it
    takes as long as torch itself (torch 2.13).
    """
    allowed = [name for statement in _statements(script) for name in _allowed(statement)]
    lazily = ["torch._dynamo"] if any(name.startswith("torch") for name in allowed) else []
    return tuple(dict.fromkeys([*allowed, *lazily]))


def sets_environment_first(script: Path) -> bool:
    """Whether a statement at its top level changes the environment before the last of those imports.

    torch is imported ahead in any case, so a script that leaves it to other modules may change nothing at all.
    """
    statements = _statements(script)
    last = max((index for index, each in enumerate(statements) if _allowed(each)), default=len(statements))
    return any(_changes_environment(each) for each in statements[:last])


def _statements(script: Path) -> list[ast.stmt]:
    """Empty for what cannot be read: the launch itself tells what is wrong with it."""
    try:
        return ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []


def _allowed(statement: ast.stmt) -> list[str]:
    names: list[str] = []
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        names = [f"{statement.module}:{alias.name}" for alias in statement.names if alias.name != "*"]
    return [name for name in names if re.split("[.:]", name)[0] in _IMPORTED_AHEAD]


def _changes_environment(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return any(_is_change(node) for node in ast.walk(statement))


def _is_change(node: ast.AST) -> bool:
    """`os.environ[...] = ...`, `del os.environ[...]`, `os.environ.setdefault(...)`, `os.putenv(...)` and the like."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, (ast.Store, ast.Del)) and _last_name(node.value) == "environ"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return _last_name(node.func.value) in ("environ", "os")
    return False


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
