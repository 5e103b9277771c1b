# SPDX-License-Identifier: Apache-2.0
"""Takes a torchrun command apart and names the flags in it that the supervisor has to set itself.

Pure. The flags are those of torch/distributed/run.py (2.13) and of torch.distributed.launch; argparse takes any
unambiguous beginning of a long flag, and so does this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_WITH_VALUE = (
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
)
_WITHOUT_VALUE = ("standalone", "module", "no-python", "run-path", "virtual-local-rank", "use-env", "help")
_SHORT = {"r": "redirects", "t": "tee", "m": "module", "h": "help"}
_PYTHON_FLAGS_WITH_VALUE = ("-W", "-X")
_ACROSS_NODES = ("nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "standalone")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as the user wrote it (`spelled`), under its long name with hyphens."""

    name: str
    value: str | None
    spelled: str


@dataclass(frozen=True, slots=True)
class TorchrunCommand:
    """`interpreter` is the Python named in the command, empty when torchrun's own first line names it."""

    program: str
    interpreter: tuple[str, ...]
    flags: tuple[Flag, ...]
    script: str | None
    script_arguments: tuple[str, ...]

    def value(self, name: str) -> str | None:
        """Of the last flag of that name; a flag without a value has an empty one. None when it is not given."""
        found = [flag for flag in self.flags if flag.name == name]
        return (found[-1].value or "") if found else None

    @property
    def ranks(self) -> int | None:
        """Ranks on each node, None when torchrun is to count the devices."""
        text = self.value("nproc-per-node")
        if text is None:
            return 1
        return int(text) if text.isdecimal() else None

    @property
    def module(self) -> str:
        """The module whose `main` the command runs."""
        return self.program if self.program in _MODULES else _MODULES[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """All that torchrun is given."""
        flags = [text for flag in self.flags for text in _written(flag)]
        script = () if self.script is None else (self.script,)
        return (*flags, *script, *self.script_arguments)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A flag that fights with supervision; `message` says what to do."""

    flag: str
    message: str


def parse(command: Sequence[str]) -> TorchrunCommand | None:
    """The parts of a torchrun command, None when the command is another program."""
    if not command:
        return None
    if PurePath(command[0]).name in ("torchrun", "torchrun.exe"):
        return _parsed(command[0], (), command[1:])
    if not PurePath(command[0]).name.startswith("python"):
        return None
    if PurePath(command[1] if len(command) > 1 else "").name == "torchrun":
        # So the kernel shows a torchrun that was started by its first line.
        return _parsed(command[1], (command[0],), command[2:])
    for index in range(1, len(command) - 1):
        if command[index] == "-m" and command[index + 1] in _MODULES:
            return _parsed(command[index + 1], tuple(command[:index]), command[index + 2 :])
        if not command[index].startswith("-") and command[index - 1] not in _PYTHON_FLAGS_WITH_VALUE:
            return None
    return None


def conflicts(command: TorchrunCommand, *, nodes: int = 1) -> tuple[Conflict, ...]:
    """Flags that the supervisor sets itself, with what to do about each."""
    found = []
    for flag in command.flags:
        message = _conflict(flag, nodes)
        if message:
            found.append(Conflict(flag.spelled, f"{flag.spelled} in the torchrun command: {message}"))
    return tuple(found)


def _conflict(flag: Flag, nodes: int) -> str:
    if flag.name == "max-restarts" and flag.value not in ("0", None):
        return "the supervisor restarts ranks itself, so torchrun must not; leave the flag out"
    if flag.name == "log-dir":
        return "the supervisor keeps each rank's log by attempt in the run folder; leave the flag out"
    if flag.name in ("redirects", "tee"):
        return "the supervisor has both streams of every rank written to files and reads them; leave the flag out"
    if nodes > 1 and flag.name in _ACROSS_NODES:
        return f"the supervisor arranges how its {nodes} nodes meet; leave the flag out"
    return ""


def _parsed(program: str, interpreter: tuple[str, ...], arguments: Sequence[str]) -> TorchrunCommand:
    flags: list[Flag] = []
    index = 0
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "--":
        flag, used = _flag(arguments[index], arguments[index + 1 : index + 2])
        flags.append(flag)
        index += used
    rest = tuple(arguments[index + (index < len(arguments) and arguments[index] == "--") :])
    return TorchrunCommand(program, interpreter, tuple(flags), rest[0] if rest else None, rest[1:])


def _flag(text: str, following: Sequence[str]) -> tuple[Flag, int]:
    """The flag at the front, and how many arguments it takes up."""
    if text.startswith("--"):
        spelled, has_value, value = text.partition("=")
        name = _long_name(spelled[2:].replace("_", "-"))
    else:
        spelled, value = text[:2], text[2:].removeprefix("=")
        has_value = value
        name = _SHORT.get(spelled[1:], spelled[1:])
    if has_value:
        return Flag(name, value, spelled), 1
    if name in _WITH_VALUE and following:
        return Flag(name, following[0], spelled), 2
    return Flag(name, None, spelled), 1


def _long_name(text: str) -> str:
    known = (*_WITH_VALUE, *_WITHOUT_VALUE)
    if text in known:
        return text
    starting = [name for name in known if name.startswith(text)]
    return starting[0] if len(starting) == 1 else text


def _written(flag: Flag) -> tuple[str, ...]:
    return (flag.spelled,) if flag.value is None else (flag.spelled, flag.value)
