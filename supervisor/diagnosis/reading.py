# SPDX-License-Identifier: Apache-2.0
"""Finds and opens logs: files, folders, gzip, standard input, whatever the encoding.

A line is never held whole when it is longer than a message can be: the rest of it is read and thrown away, so a
file of one endless line costs no memory.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from supervisor.diagnosis.model import LogSource, Stream
from supervisor.diagnosis.prefixes import MAX_LINE_CHARS

STDIN = "-"
_LOG_NAMES = re.compile(
    r"(?i)(?:\.(?:log|out|err|txt|json|stdout|stderr)(?:\.\d+)?(?:\.gz)?$|^std(?:out|err)|log|dmesg|kern)"
)
_NOT_LOGS = re.compile(
    r"(?i)\.(?:pt|pth|safetensors|bin|npy|npz|distcp|py|pyc|so|whl|zip|tar|png|db|sqlite)$|^journal\.jsonl"
)
_RANK_IN_PATH = re.compile(r"(?i)(?:^|[/_.-])(?:global[_-]?)?rank[_=-]?(\d{1,6})(?=[/_.-]|$)")
_NODE_IN_PATH = re.compile(r"(?i)(?:^|/)(?:node|host)s?[=/]([\w.-]+?)(?:/|$)")
_KERNEL_IN_PATH = re.compile(r"(?i)dmesg|kern(?:el)?[._-]|kernel|syslog|messages$")
_LAUNCHER_IN_PATH = re.compile(r"(?i)launcher|torchrun|slurm-|srun|agent")
_MOST_FILES = 20_000


class LogReadError(OSError):
    """A path given to diagnose cannot be read; the message says which and what to do."""


def find_sources(path: Path) -> list[LogSource]:
    """The logs at `path`: the file itself, or all of a folder, in order of their names.

    Raises LogReadError when there is nothing at `path`.
    """
    if path.is_file():
        return [describe(path)]
    if not path.is_dir():
        raise LogReadError(
            f"{path}: there is no such file or folder; give log files, folders or '-' for standard input"
        )
    files = sorted(p for p in path.rglob("*") if _is_log(p))
    return [describe(p) for p in files[:_MOST_FILES]]


def _is_log(path: Path) -> bool:
    if _NOT_LOGS.search(path.name) or not _LOG_NAMES.search(path.name):
        return False
    return path.is_file() and (path.suffix != ".json" or path.name == "error.json")


def describe(path: Path) -> LogSource:
    """A source for one file, with the rank, the node and the kind that its path tells."""
    text = path.as_posix()
    rank = _RANK_IN_PATH.search(text)
    node = _NODE_IN_PATH.search(text)
    stream = Stream.STDOUT
    if _KERNEL_IN_PATH.search(path.name):
        stream = Stream.KERNEL
    elif _LAUNCHER_IN_PATH.search(path.name):
        stream = Stream.LAUNCHER
    elif "err" in path.name.lower():
        stream = Stream.STDERR
    return LogSource(str(path), path, int(rank[1]) if rank else None, node[1] if node else None, stream)


def read_lines(path: Path, last_bytes: int | None = None) -> Iterator[str]:
    """The lines of a file, each cut at MAX_LINE_CHARS; gzip by its first bytes.

    With `last_bytes` a longer plain file is read from the first whole line of its last so many bytes. Where a hole
    was punched at the start of a file, reading begins behind it.

    Raises LogReadError when the file cannot be opened. A gzip file that is cut short ends where it is cut.
    """
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not is_gzip:
                _skip_start(raw, last_bytes)
                yield from split_lines(raw)
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield from split_lines(unpacked)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return
    except OSError as error:
        raise LogReadError(f"{path}: cannot be read ({error.strerror or error}); check its rights") from error


def is_cut(path: Path, last_bytes: int | None) -> bool:
    """Whether `read_lines` leaves out the start of the file."""
    return last_bytes is not None and path.stat().st_size > last_bytes


def _skip_start(raw: IO[bytes], last_bytes: int | None) -> None:
    size = os.fstat(raw.fileno()).st_size
    begin = 0 if last_bytes is None else max(0, size - last_bytes)
    # The buffered reader does not notice when the place is moved under it, so it is put back.
    place = os.lseek(raw.fileno(), 0, os.SEEK_CUR)
    with contextlib.suppress(OSError):  # a file of nothing but a hole, or a file system that knows none
        begin = max(begin, os.lseek(raw.fileno(), 0, os.SEEK_DATA))
    os.lseek(raw.fileno(), place, os.SEEK_SET)
    raw.seek(begin)
    if begin:
        raw.readline()


def split_lines(stream: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    """Decode a byte stream to lines of at most MAX_LINE_CHARS; bytes that are not UTF-8 become replacement marks."""
    while True:
        piece = stream.readline(MAX_LINE_CHARS)
        if not piece:
            return
        yield piece.decode("utf-8", errors="replace").replace("\x00", "").rstrip("\r\n")
        while piece and not piece.endswith(b"\n"):
            piece = stream.readline(MAX_LINE_CHARS)
