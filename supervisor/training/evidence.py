# SPDX-License-Identifier: Apache-2.0
"""Lets the agent ask a rank for evidence while its main thread hangs, and leaves a trace of what ended it.

PyTorch's worker server answers `POST /handler/dump_traceback` and `/handler/fr_trace_json` from its own thread
(torch/csrc/distributed/c10d/control_plane/WorkerServer.cpp). It is used where the script has loaded torch, and
never imported. It lies in a private module, so whatever it raises costs one log line and not the run.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_log = logging.getLogger(__name__)

_SOCKET_PATH_BYTES = 107  # sun_path of unix(7), less the final zero

_MODULE = "torch._C._distributed_c10d"


def is_torch_loaded() -> bool:
    """Tell whether the script has loaded torch with its distributed part."""
    return _MODULE in sys.modules


def start_stack_server(socket: Path) -> bool:
    """Start the worker server of the torch that is loaded on a unix socket; false, with one log line, if it cannot.

    It answers until the process ends and is never shut down: `shutdown` holds the interpreter's lock while it waits for
    its threads, for ever when it comes before they listen. Nor is it ever destroyed, since the destructor joins them
    too, and in a forked child they do not exist.
    """
    if len(str(socket).encode()) > _SOCKET_PATH_BYTES:
        _log.warning("no stacks or flight records on a hang: socket path %s exceeds 107 bytes", socket)
        return False
    try:
        # The server refuses a path that exists; a restart in place finds the socket of the rank before it.
        socket.unlink(missing_ok=True)
        server = sys.modules[_MODULE]._WorkerServer(str(socket))  # noqa: SLF001  (torch has no public name for it)
    except (AttributeError, OSError, RuntimeError, TypeError) as error:
        _log.warning("no stacks or flight records on a hang: worker server did not start on %s: %s", socket, error)
        return False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    return True


def enable_fault_stacks() -> None:
    """Have a fatal signal print Python stacks on stderr, unless someone else handles such signals already."""
    if faulthandler.is_enabled() or signal.getsignal(signal.SIGSEGV) is not signal.SIG_DFL:
        return
    try:
        faulthandler.enable()
    except (AttributeError, RuntimeError, ValueError, io.UnsupportedOperation):
        _log.debug("stderr is no file, so a fatal signal leaves no Python stack")


ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class UncaughtException:
    """Tells of an exception that ends the script, then does what was done before."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._previous: ExceptHook = sys.excepthook
        self._hook: ExceptHook = self._on_exception
        sys.excepthook = self._hook

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._tell(kind.__name__)
        self._previous(kind, error, trace)

    def remove(self) -> None:
        """Put the previous hook back, unless another has been put on top."""
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous
