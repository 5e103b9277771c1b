# SPDX-License-Identifier: Apache-2.0
"""The program of a standby: imports what a launcher (and its ranks) need, waits, and then is the launcher.

It runs in the user's interpreter, so it imports the standard library and torch only, and nothing of this package. In
mode `ranks` it forks the ranks before torchrun starts any thread; each waits until torchrun would start it, then runs
the script as `__main__` from the top of its stack and ends as any interpreter does. It exits when the agent's end
closes.

    standby.py DESCRIPTOR JSON       {"path0": str, "modules": [str, ...]}
    agent -> standby, one line       {"module", "argv", "environment", "stdout", "stderr", "ranks"}
    standby -> agent                 "ready", then "begun"
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from typing import Any

LOWEST_PRIORITY = 19
_WAIT_POLL_S = 0.01


def import_quietly(names: Sequence[str]) -> None:
    """Import `module` or `module:name` in a thread of the lowest priority.

    What cannot be imported fails later, in the script itself, where a person sees it.

    The priority is the thread's alone. A whole process could not raise its own again without privileges.
    """

    def load() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        for each in names:
            module, _, name = each.partition(":")
            with contextlib.suppress(ImportError, AttributeError, OSError, RuntimeError):
                loaded = importlib.import_module(module)
                if name:
                    # Some packages load what they offer when it is first asked for.
                    getattr(loaded, name)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()


class ForkedRank:
    """Stands for subprocess.Popen where torchrun expects one."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and timeout is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            time.sleep(_WAIT_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Spare:
    """A forked process that waits to become a rank; `pipe` is our end."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe

    def begin(self, order: Mapping[str, object]) -> None:
        with os.fdopen(self.pipe, "wb") as pipe:
            pipe.write(json.dumps(order).encode())


def fork_spares(count: int) -> list[Spare] | bytes:
    """In the launcher the spares; in a spare the order that it got, after which it is to become the rank."""
    spares: list[Spare] = []
    gc.freeze()
    for _ in range(count):
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, such as those of a BLAS, which know how to be forked.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(writing)
            for spare in spares:
                os.close(spare.pipe)
            with os.fdopen(reading, "rb") as pipe:
                order = pipe.read()
            if not order:
                os._exit(0)
            return order
        os.close(reading)
        spares.append(Spare(pid, writing))
    return spares


def start_ranks_from(spares: list[Spare]) -> None:
    """Have torchrun's subprocess ranks begin in the spares. Whatever is not a plain script is started as usual."""
    # Imported by name, since nothing else of this package may depend on torch. torch has no public place for this.
    handlers = importlib.import_module("torch.distributed.elastic.multiprocessing.subprocess_handler")
    handler_class: Any = handlers.SubprocessHandler
    usual = handler_class._popen  # noqa: SLF001

    def popen(handler: Any, args: tuple[str, ...], env: dict[str, str]) -> Any:
        local_rank = int(handler.local_rank_id)
        spare = spares[local_rank] if local_rank < len(spares) else None
        if spare is None or spare.pipe < 0 or tuple(args[:2]) != (sys.executable, "-u"):
            return usual(handler, args, env)
        streams = [getattr(stream, "name", None) for stream in (handler._stdout, handler._stderr)]  # noqa: SLF001
        spare.begin({"argv": list(args[2:]), "environment": env, "streams": streams})
        spare.pipe = -1
        return ForkedRank(spare.pid, args)

    handler_class._popen = popen  # noqa: SLF001


def become_rank(order: Mapping[str, Any]) -> None:
    """Run the script as the interpreter would; returns or raises as the script does."""
    for descriptor, name in zip((1, 2), order["streams"], strict=True):
        if name is not None:
            opened = os.open(name, os.O_WRONLY)
            os.dup2(opened, descriptor)
            os.close(opened)
    environment = order["environment"]
    _replace_environment(environment)
    _announce(environment)
    _reseed()
    sys.excepthook = _show_without_own_frames
    script, *arguments = order["argv"]
    path = os.path.abspath(script)  # noqa: PTH100  (as the interpreter does: no resolving of links)
    sys.argv = [script, *arguments]
    _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __loader__=SourceFileLoader("__main__", path), __spec__=None, __cached__=None)
    global _own_main  # noqa: PLW0603  (else the functions of this file would lose their globals)
    _own_main = sys.modules["__main__"]
    sys.modules["__main__"] = main
    with open(path, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102  (running the user's script is the purpose)


_own_main: types.ModuleType | None = None


def _announce(environment: Mapping[str, str]) -> None:
    """Let the agent know who this is, since /proc shows the environment of the start only."""
    folder, local_rank = environment.get("SUPERVISOR_RANK_FOLDER"), environment.get("LOCAL_RANK")
    if not folder or local_rank is None:
        return
    told = {
        "pid": os.getpid(),
        "rank": int(environment["RANK"]),
        "local_rank": int(local_rank),
        "local_world_size": int(environment.get("LOCAL_WORLD_SIZE", "0")),
    }
    path = os.path.join(folder, f"forked-{local_rank}.json")  # noqa: PTH118
    with contextlib.suppress(OSError):
        with open(path + ".part", "w") as file:  # noqa: PTH123
            json.dump(told, file)
        os.replace(path + ".part", path)  # noqa: PTH105


def _reseed() -> None:
    """What an interpreter seeds from the system must differ between forks; torch starts from a constant."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    if "numpy" in sys.modules and hasattr(sys.modules["numpy"], "random"):
        sys.modules["numpy"].random.seed()


def _replace_environment(environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _set_first_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _receive(line: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        part = line.recv(1 << 16)
        if not part:
            return b""
        received += part
    return received


def _redirect(order: Mapping[str, Any]) -> None:
    for descriptor, name in ((1, order["stdout"]), (2, order["stderr"])):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)


def run(descriptor: int, setup: Mapping[str, Any]) -> None:
    """Wait for the order, then be the launcher or one of its ranks."""
    line = socket.socket(fileno=descriptor)
    _set_first_path(setup["path0"])
    import_quietly(setup["modules"])
    try:
        line.sendall(b"ready\n")
        received = _receive(line)
    except OSError:
        received = b""
    if not received:
        return
    order = json.loads(received)
    _redirect(order)
    line.sendall(b"begun\n")
    line.close()
    _replace_environment(order["environment"])
    if order["ranks"]:
        spares = fork_spares(order["ranks"])
        if isinstance(spares, bytes):
            become_rank(json.loads(spares))
            return
        start_ranks_from(spares)
        _set_first_path(order["path0"])
    sys.argv = order["argv"]
    importlib.import_module(order["module"]).main()


def _show_without_own_frames(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Show what the interpreter would show, had it run the script itself."""
    below = trace
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    # The interpreter shows the traceback of the exception itself, whatever it is handed.
    error.__traceback__ = below if below is not None else trace
    sys.__excepthook__(kind, error, error.__traceback__)


if __name__ == "__main__":
    run(int(sys.argv[1]), json.loads(sys.argv[2]))
