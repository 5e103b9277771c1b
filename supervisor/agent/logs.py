# SPDX-License-Identifier: Apache-2.0
"""The ranks' logs: a stable place for each, and an end to their growth.

torchrun names its folders by chance and by local rank; `rank-<R>/stdout.log` in the attempt's folder always leads
there. A log is open in the rank, so it can be neither moved nor cut. Its oldest part is compressed and its blocks are
freed by punching a hole, which leaves every offset as it was: reading the file from its start gives zero bytes first.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import os
import re
from dataclasses import dataclass
from pathlib import Path

from supervisor.agent.launch import TORCHRUN_LOGS

STREAMS = ("stdout", "stderr")
MAX_PARTS = 8
"""Compressed parts kept of each log; the oldest goes first."""
_BLOCK = 4096
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02  # <linux/falloc.h>
_CHUNK = 1 << 20
_ENDS = re.compile(rb"[\r\n]+")


class RotationRefusedError(Exception):
    """The file system cannot punch holes."""


@dataclass(frozen=True, slots=True)
class RankLogs:
    """The stable paths of one rank's output."""

    stdout: Path
    stderr: Path

    @property
    def both(self) -> tuple[Path, Path]:
        return self.stdout, self.stderr


def of_rank(attempt_folder: Path, rank: int) -> RankLogs:
    folder = attempt_folder / f"rank-{rank}"
    return RankLogs(folder / "stdout.log", folder / "stderr.log")


def link(attempt_folder: Path, rank: int, local_rank: int, *, is_torchrun: bool) -> bool:
    """Make the stable paths lead to where the rank writes; False while it does not write anywhere yet."""
    for stream, path in zip(STREAMS, of_rank(attempt_folder, rank).both, strict=True):
        if path.exists():
            continue
        target = _torchrun_log(attempt_folder, local_rank, stream) if is_torchrun else None
        if is_torchrun and target is None:
            return False
        if target is None:
            target = attempt_folder / ("launcher.out" if stream == "stdout" else "launcher.err")
        path.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.symlink_to(os.path.relpath(target, path.parent))
    return True


def link_open_files(attempt_folder: Path, rank: int, pid: int) -> None:
    """Make the stable paths lead to the files that a process writes its output to, where it writes to files."""
    for descriptor, path in zip((1, 2), of_rank(attempt_folder, rank).both, strict=True):
        with contextlib.suppress(OSError):
            target = Path(f"/proc/{pid}/fd/{descriptor}").readlink()
            if target.is_file() and not path.is_symlink():
                path.parent.mkdir(exist_ok=True)
                path.symlink_to(target)


def _torchrun_log(attempt_folder: Path, local_rank: int, stream: str) -> Path | None:
    found = sorted((attempt_folder / TORCHRUN_LOGS).glob(f"*/attempt_*/{local_rank}/{stream}.log"))
    return found[-1] if found else None


def rotate(path: Path, limit_bytes: int) -> bool:
    """Compress the oldest half of a log that is larger than the limit in plain form; whether anything was done.

    The parts are `<log>.<n>.gz`, rising; `zcat` of all of them followed by the plain rest is the whole log, as long as
    no part had to go.

    Raises:
        RotationRefusedError: the file system cannot free the middle of a file; the log was left as it is.
        OSError: the log cannot be read, or there is no room for the part.
    """
    path = path.resolve()
    with path.open("r+b") as log:
        begin = _first_byte(log.fileno())
        size = os.fstat(log.fileno()).st_size
        if size - begin <= limit_bytes:
            return False
        end = (begin + (size - begin) - limit_bytes // 2) // _BLOCK * _BLOCK
        if end <= begin:
            return False
        numbers = sorted(_number(part) for part in path.parent.glob(f"{path.name}.*.gz"))
        part = path.with_name(f"{path.name}.{(numbers[-1] if numbers else 0) + 1}.gz")
        try:
            _compress(log.fileno(), begin, end, part)
            _punch(log.fileno(), begin, end)
        except (OSError, RotationRefusedError):
            part.unlink(missing_ok=True)
            raise
    for number in numbers[: max(0, len(numbers) + 1 - MAX_PARTS)]:
        path.with_name(f"{path.name}.{number}.gz").unlink(missing_ok=True)
    return True


def _number(part: Path) -> int:
    text = part.name.rsplit(".", 2)[-2]
    return int(text) if text.isdecimal() else 0


def _first_byte(descriptor: int) -> int:
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError:
        # ENXIO: nothing in it but a hole.
        return os.fstat(descriptor).st_size


def _compress(descriptor: int, begin: int, end: int, part: Path) -> None:
    with gzip.open(part, "wb", compresslevel=1) as out:
        while begin < end:
            chunk = os.pread(descriptor, min(_CHUNK, end - begin), begin)
            if not chunk:
                return
            out.write(chunk)
            begin += len(chunk)


def _punch(descriptor: int, begin: int, end: int) -> None:
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(descriptor, _KEEP_SIZE_AND_PUNCH, begin, end - begin) != 0:
        raise RotationRefusedError(os.strerror(ctypes.get_errno()))


class Tail:
    """Reads what is appended to a text file, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self, limit_bytes: int = 4 * _CHUNK) -> list[str]:
        """New whole lines, oldest first; at most `limit_bytes` at once, the rest by the next call."""
        try:
            with self._path.open("rb") as file:
                if self._offset == 0:
                    self._offset = _first_byte(file.fileno())
                file.seek(self._offset)
                read = file.read(limit_bytes)
        except OSError:
            return []
        self._offset += len(read)
        # A progress bar ends its states with carriage returns and never with a new line.
        *lines, self._rest = _ENDS.split(self._rest + read)
        self._rest = self._rest[-_CHUNK:]
        return [line.decode(errors="replace") for line in lines]
