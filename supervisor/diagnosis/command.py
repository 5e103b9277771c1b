# SPDX-License-Identifier: Apache-2.0
"""`supervisor diagnose`: one diagnosis of the logs given, for a person or as JSON.

Exit code 0 whatever the diagnosis says, since finding a failure is this command's success; 2 for a wrong path.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from supervisor.diagnosis.api import LogReadError, LogSource, diagnose, find_sources, to_json
from supervisor.diagnosis.reading import STDIN, split_lines
from supervisor.diagnosis.report import render

OK = 0
WRONG_USAGE = 2


def run(
    paths: Sequence[str],
    output_format: str = "text",
    *,
    stdin: IO[bytes] | None = None,
    out: IO[str] | None = None,
    errors: IO[str] | None = None,
) -> int:
    """Diagnose `paths` (files, folders or `-`) and print the answer as `text` or `json`; returns the exit code."""
    out = out or sys.stdout
    errors = errors or sys.stderr
    try:
        sources = _sources(paths, stdin)
        diagnosis = diagnose(sources)
    except LogReadError as error:
        print(f"supervisor diagnose: {error}", file=errors)
        return WRONG_USAGE
    if output_format == "json":
        print(json.dumps(to_json(diagnosis), ensure_ascii=False, indent=2), file=out)
    else:
        print(render(diagnosis), file=out)
    return OK


def _sources(paths: Sequence[str], stdin: IO[bytes] | None) -> list[LogSource]:
    if not paths:
        raise LogReadError("no path given; give log files, folders or '-' for standard input")
    sources: list[LogSource] = []
    for path in dict.fromkeys(paths):
        if path == STDIN:
            sources.append(LogSource("<stdin>", split_lines(stdin or sys.stdin.buffer)))
            continue
        found = find_sources(Path(path))
        if not found:
            raise LogReadError(f"{path}: the folder holds no logs (*.log, *.out, *.err, *.txt, error.json, ...)")
        sources.extend(found)
    return sources
