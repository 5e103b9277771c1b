# SPDX-License-Identifier: Apache-2.0
"""Lets ranks start the checkpoint writer in milliseconds: a program that passes for Python and has it forked warm.

Ranks start it as they start any, by their interpreter's path; only its imports, two seconds with torch, are made once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from tests.system.soak_launch import end_with_parent

_READ_BYTES = 1 << 20
_PROGRAM = """#!{python} -IS
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({socket!r})
line.sendall(json.dumps([sys.argv[1:], dict(os.environ)]).encode())
line.shutdown(socket.SHUT_WR)
sys.exit(int(line.recv(16) or 1))
"""


def open_nursery(folder: Path) -> tuple[str, int]:
    """Fork the process that forks writers; returns the program to start one with, and the number of the process."""
    name = str(folder / "nursery.sock")
    Path(name).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(name)
    listener.listen(64)
    program = folder / "warm-python"
    program.write_text(_PROGRAM.format(python=sys.executable, socket=name))
    program.chmod(0o700)
    pid = os.fork()
    if pid == 0:
        _serve(listener)
    listener.close()
    return str(program), pid


def _serve(listener: socket.socket) -> NoReturn:
    import checkpoint.publisher  # noqa: F401 - what a writer would import later

    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _become(connection)
        connection.close()


def _become(connection: socket.socket) -> NoReturn:
    """Run the command as Python would; the one that detaches itself answers for both."""
    from checkpoint import __main__ as command

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    payload = b""
    while block := connection.recv(_READ_BYTES):
        payload += block
    arguments, environment = json.loads(payload)
    os.environ.clear()
    os.environ.update(environment)
    me, code = os.getpid(), 1
    try:
        assert arguments[:2] == ["-m", "checkpoint"], arguments
        code = command.main(arguments[2:])
    except BaseException:  # noqa: BLE001 - a forked process must not unwind into what its parent was doing
        traceback.print_exc()
    if os.getpid() == me:
        connection.sendall(str(code).encode())
    os._exit(code)
