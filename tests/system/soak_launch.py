# SPDX-License-Identifier: Apache-2.0
"""One launch of two forked ranks, as the kill soak starts, watches and ends it."""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.system.soak_ranks import WORLD_SIZE, Errand, WrongStateError, work

Result = TypeVar("Result")
_RESTORED_S = 120.0
_STOPPED_S = 120.0
_WRONG_STATE = 3
_PR_SET_PDEATHSIG = 1


class Launch:
    """Ranks that restore at once, save when they may `go`, and end when they are to `stop`."""

    def __init__(self, folder: Path, uri: str, *, overlap: bool, writer_program: str | None) -> None:
        name = f"launch-{time.monotonic_ns()}"
        self._log = folder / f"{name}.log"
        self._errand = Errand(uri, folder / f"{name}.meeting", folder / f"{name}.stop", overlap, writer_program)
        self._hear, tell = os.pipe()
        hear, self._tell = os.pipe()
        self.pids = [self._start(rank, tell, hear) for rank in range(WORLD_SIZE)]
        self._codes: dict[int, int] = {}
        os.close(tell)
        os.close(hear)

    def restored(self) -> int:
        """Wait until all ranks have restored; the step, which is the same on all."""
        lines, ends = b"", time.monotonic() + _RESTORED_S
        while lines.count(b"\n") < WORLD_SIZE:
            if select.select([self._hear], [], [], 0.5)[0]:
                lines += os.read(self._hear, 4096)
            self.demand_well()
            assert time.monotonic() < ends, f"ranks did not restore: {self._said()}"
        steps = {line.split()[1] for line in lines.splitlines()}
        assert len(steps) == 1, f"ranks restored different steps: {steps}"
        return int(steps.pop())

    def go(self) -> None:
        """Let the ranks save."""
        os.write(self._tell, b"g" * WORLD_SIZE)

    def stop(self) -> None:
        """Have the ranks close their checkpointers, and wait for it."""
        self._errand.stop.touch()
        ends = time.monotonic() + _STOPPED_S
        while len(self._codes) < WORLD_SIZE:
            assert time.monotonic() < ends, f"ranks did not stop: {self._said()}"
            self.demand_well()
            time.sleep(0.01)

    def demand_well(self) -> None:
        """Every rank must be alive, or have ended by its own will."""
        for rank in range(WORLD_SIZE):
            self._look(rank, os.WNOHANG)
        assert not any(self._codes.values()), f"ranks ended with {self._codes}: {self._said()}"

    def kill(self, rank: int) -> None:
        """End one rank as a crash does."""
        if rank not in self._codes:
            os.kill(self.pids[rank], signal.SIGKILL)

    def end(self) -> None:
        """Kill what still runs.

        Raises:
            AssertionError: a rank had restored a wrong state; others may end as they like when they are being killed.
        """
        for rank in range(WORLD_SIZE):
            self.kill(rank)
        for rank in range(WORLD_SIZE):
            self._look(rank, 0)
        assert _WRONG_STATE not in self._codes.values(), self._said()

    def clear(self) -> None:
        """Remove the launch's own files."""
        for descriptor in (self._hear, self._tell):
            os.close(descriptor)
        for path in (self._errand.stop, self._errand.meeting, self._log):
            path.unlink(missing_ok=True)

    def _look(self, rank: int, flags: int) -> None:
        if rank not in self._codes:
            pid, status = os.waitpid(self.pids[rank], flags)
            if pid:
                self._codes[rank] = os.waitstatus_to_exitcode(status)

    def _said(self) -> str:
        return self._log.read_text()[-6000:] if self._log.exists() else "nothing"

    def _start(self, rank: int, tell: int, hear: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            end_with_parent()
            for descriptor in (self._hear, self._tell):
                os.close(descriptor)
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            work(rank, self._errand, tell, hear)
            code = 0
        except WrongStateError:
            traceback.print_exc()
            code = _WRONG_STATE
        except BaseException:  # noqa: BLE001 - a forked process must not unwind into what its parent was doing
            traceback.print_exc()
        os._exit(code)


def end_with_parent() -> None:
    """Be killed when the process that forked this one ends, however that comes about."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def forked(look: Callable[[], Result]) -> Result:
    """Call it in a child, so that threads which it starts are not here; its result has to be picklable."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with os.fdopen(write, "wb") as stream:
                pickle.dump(look(), stream)
            code = 0
        except BaseException:  # noqa: BLE001 - as above
            traceback.print_exc()
        os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        payload = stream.read()
    assert os.waitpid(pid, 0)[1] == 0, "the store could not be looked at; see above"
    result: Result = pickle.loads(payload)
    return result


def children_of(parent: int) -> list[int]:
    """Process numbers of the children; those that have ended and wait for their parent are left out."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                state, ppid = (each / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(ppid) == parent and state != "Z":
                    found.append(int(each.name))
    return sorted(found)


def writers(memory: Path) -> list[int]:
    """Those of this process' children that have a writer's lock file open."""
    found = []
    for pid in children_of(os.getpid()):
        with suppress(OSError):
            names = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115 - sockets are no paths
            if any(name.startswith(f"{memory}/") and name.endswith(".lock") for name in names):
                found.append(pid)
    return found
