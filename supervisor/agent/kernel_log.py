# SPDX-License-Identifier: Apache-2.0
"""The kernel's messages of this host: the only witness of a GPU off the bus or of a process killed for its memory.

Reading never waits: the kernel's buffer is read without blocking, and a `dmesg` that is asked instead has a second.
Where neither may be read, the log that is kept says so in one line.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DEVICE = Path("/dev/kmsg")
_MOST_LINES = 2000
_LIMIT_S = 1.0
_RECORD_BYTES = 8192
_DMESG_LINE = re.compile(r"^\[\s*(\d+\.\d+)\] (.*)$")


class KernelLogError(Exception):
    """The kernel's messages cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Message:
    """`since_boot_s` is by the kernel's clock, which stands still while the host sleeps."""

    since_boot_s: float
    text: str


def path_for(attempt_folder: str | Path, node: str) -> Path:
    """Where the kernel log of a node is kept."""
    return Path(attempt_folder, f"kernel-{node}.log")


def keep(path: Path, since: float, read: Callable[[], list[Message]] | None = None) -> None:
    """Write what the kernel has said since then (unix seconds) to `path`, with local times; never raises for I/O."""
    try:
        lines = written((read or read_messages)(), time.time() - time.monotonic(), since)
    except KernelLogError as error:
        lines = [f"no kernel log of this node: {error}"]
    with contextlib.suppress(OSError):
        path.write_text("".join(f"{line}\n" for line in lines[-_MOST_LINES:]))


def written(messages: list[Message], booted_at: float, since: float) -> list[str]:
    """The messages from `since` (unix seconds) on, as lines with the local time; a host booted at `booted_at`."""
    lines = []
    for each in messages:
        at = booted_at + each.since_boot_s
        if at >= since:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
            lines.append(f"{stamp}.{int(at % 1 * 1000):03d} kernel: {each.text}")
    return lines


def read_messages() -> list[Message]:
    """All that the kernel still holds, oldest first; raises KernelLogError."""
    try:
        descriptor = os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _by_dmesg(f"{DEVICE}: {error.strerror}")
    try:
        return _records(descriptor, time.monotonic() + _LIMIT_S)
    except OSError as error:
        return _by_dmesg(f"{DEVICE}: {error.strerror}")
    finally:
        os.close(descriptor)


def _records(descriptor: int, until: float) -> list[Message]:
    found = []
    while time.monotonic() < until:
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            break
        except BrokenPipeError:
            continue  # The oldest records were overwritten while we read.
        message = parse_record(record.decode(errors="replace"))
        if message is not None:
            found.append(message)
    return found


def parse_record(text: str) -> Message | None:
    """One record of /dev/kmsg: `priority,number,microseconds,flags;text`, then lines of keys (kernel.org, dev-kmsg)."""
    head, _, body = text.partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not fields[2].isdecimal():
        return None
    return Message(int(fields[2]) / 1e6, body.partition("\n")[0])


def _by_dmesg(why: str) -> list[Message]:
    try:
        asked = subprocess.run(["dmesg"], capture_output=True, timeout=_LIMIT_S, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelLogError(f"{why}; dmesg: {_reason(error)}") from None
    matches = (_DMESG_LINE.match(line) for line in asked.stdout.decode(errors="replace").splitlines())
    return [Message(float(match[1]), match[2]) for match in matches if match is not None]


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr.decode(errors="replace").strip() or f"exit code {error.returncode}")
    return str(error)
