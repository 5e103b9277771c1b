# SPDX-License-Identifier: Apache-2.0
"""What an exit code means when no line of a log says more.

A code says how a process ended, seldom why. So these rules count only after the lines, and they separate what the
supervisor saw itself from what a launcher's log tells: a kill seen live, with the kernel log at hand and no
out-of-memory line in it, came from outside; in a bare log the host's memory is the usual reason of a SIGKILL.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.diagnosis.model import UNKNOWN, Action, RankExit

_USAGE_ERROR = 2
_HARD = frozenset({-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE})
_NOTICED_LATE_S = 3.0


@dataclass(frozen=True, slots=True)
class ExitRule:
    """The meaning of an exit code: `name` follows `signature:` in `decided_by`."""

    name: str
    reason: str
    action: Action
    confidence: float
    explanation: str
    suggestion: str
    is_symptom: bool = False


_OUTSIDE_KILL = ExitRule(
    "exit_sigkill_from_outside",
    "NodeFailure",
    Action.RESTART_SAME,
    0.5,
    "The process was killed by SIGKILL from outside; no line speaks of memory running out, so who did it is not known.",
    "Restart; when it repeats, read the kernel log and ask who or what kills processes on that node.",
)
_MEMORY_KILL = ExitRule(
    "exit_sigkill_in_log",
    "OutOfMemoryError",
    Action.FIX_USER,
    0.45,
    "A process was killed by SIGKILL without a word of its own, which most often means that host memory ran out.",
    "Look for 'Killed process' in the kernel log: then ask for more host memory or use less; else restart.",
)
_SHARED_MEMORY = ExitRule(
    "exit_sigbus",
    "OSError",
    Action.FIX_USER,
    0.6,
    "The process died of a bus error: shared memory (/dev/shm) is full, or a mapped file went away.",
    "Give the container more shared memory (docker --shm-size); check files mapped from a network file system.",
)
_NATIVE_CRASH = ExitRule(
    "exit_sigsegv",
    "RuntimeError",
    Action.FIX_USER,
    0.5,
    "The process crashed in native code (segmentation fault); at start that is a library that does not fit.",
    "Run with PYTHONFAULTHANDLER=1 to see where; check that all native libraries were built for this torch.",
)
_NATIVE_CRASH_OF_ONE = ExitRule(
    "exit_sigsegv_one_rank",
    "RuntimeError",
    Action.RESTART_SAME,
    0.4,
    "One rank of several crashed in native code (segmentation fault) while the others ran.",
    "Restart; when it comes back run with PYTHONFAULTHANDLER=1, on the same node test that node.",
)
_ABORT = ExitRule(
    "exit_sigabrt",
    UNKNOWN,
    Action.RESTART_SAME,
    0.3,
    "The process aborted itself (SIGABRT) and its log does not say why; most often NCCL's watchdog or CUDA does that.",
    "Restart; read the last 200 lines of that rank.",
)
_STOPPED = ExitRule(
    "exit_stopped",
    "ExternalStop",
    Action.RESTART_SAME,
    0.6,
    "The process was told to end from outside the run.",
    "Find out who stopped it; restart.",
    is_symptom=True,
)
_ARGUMENTS = ExitRule(
    "exit_usage",
    "ArgumentError",
    Action.FIX_USER,
    0.8,
    "Exit code 2 is what a program returns that refuses its command line.",
    "Run the command by hand with --help and correct its arguments.",
)
_NOT_STARTED = ExitRule(
    "exit_not_started",
    "FileNotFoundError",
    Action.FIX_USER,
    0.8,
    "The command could not be started: it does not exist (127) or may not be executed (126).",
    "Correct the path of the command or its rights.",
)
_TIMED_OUT = ExitRule(
    "exit_timeout",
    "ExternalStop",
    Action.RESTART_SAME,
    0.5,
    "Exit code 124 is what timeout(1) returns when it stopped its command.",
    "Raise the limit of timeout(1), or leave it to the supervisor to notice a hang.",
)
_PLAIN_FAILURE = ExitRule(
    "exit_without_message",
    UNKNOWN,
    Action.FIX_USER,
    0.3,
    "The process returned an error code, and no line says why.",
    "Make the program print its error; for torchrun decorate main() with torch.distributed.elastic's @record.",
)

_BY_SIGNAL: dict[int, ExitRule] = {
    signal.SIGBUS: _SHARED_MEMORY,
    signal.SIGABRT: _ABORT,
    signal.SIGTERM: _STOPPED,
    signal.SIGINT: _STOPPED,
    signal.SIGHUP: _STOPPED,
    signal.SIGUSR1: _STOPPED,
    signal.SIGUSR2: _STOPPED,
}


def as_signal(code: int) -> int:
    """Shells and containers write 128+n for signal n; Python writes -n, and so do we."""
    return 128 - code if 128 < code < 160 else code


def rule_for(code: int, *, is_live: bool, is_one_of_many: bool) -> ExitRule | None:
    """The meaning of one code, None for 0; `is_live` when the supervisor saw the end itself."""
    code = as_signal(code)
    if code == -signal.SIGKILL:
        return _OUTSIDE_KILL if is_live else _MEMORY_KILL
    if code in {-signal.SIGSEGV, -signal.SIGILL, -signal.SIGFPE}:
        return _NATIVE_CRASH_OF_ONE if is_live and is_one_of_many else _NATIVE_CRASH
    if code < 0:
        return _BY_SIGNAL.get(-code, _OUTSIDE_KILL)
    by_code = {0: None, 124: _TIMED_OUT, 126: _NOT_STARTED, 127: _NOT_STARTED}
    if code in by_code:
        return by_code[code]
    return _ARGUMENTS if code == _USAGE_ERROR and not is_one_of_many else _PLAIN_FAILURE


def first_telling(exits: Sequence[RankExit], stopped_by_us: frozenset[int]) -> tuple[RankExit, ExitRule] | None:
    """The exit that tells most: not our own stopping; a hard end before a plain error; then the earliest.

    Codes 1 and SIGABRT often are a victim's, so a rank that was killed or crashed comes before them unless they
    ended clearly before it, when the kill is only somebody's clearing up.
    """
    failed = [e for e in exits if e.exit_code not in {0, None} and not _is_our_stop(e, stopped_by_us)]
    hard_at = min((e.at or 0.0 for e in failed if as_signal(e.exit_code or 0) in _HARD), default=float("inf"))
    ruled: list[tuple[tuple[bool, bool, float], RankExit, ExitRule]] = []
    for one in failed:
        assert one.exit_code is not None
        same = sum(as_signal(other.exit_code or 0) == as_signal(one.exit_code) for other in failed)
        rule = rule_for(one.exit_code, is_live=True, is_one_of_many=len(exits) > 1 and same == 1)
        if rule is not None:
            is_victim_code = rule in {_PLAIN_FAILURE, _ABORT} and (one.at is None or one.at > hard_at - _NOTICED_LATE_S)
            ruled.append(((rule.is_symptom, is_victim_code, one.at or float("inf")), one, rule))
    if not ruled:
        return None
    _, one, rule = min(ruled, key=lambda entry: (entry[0], entry[1].rank))
    return one, rule


def _is_our_stop(one: RankExit, stopped_by_us: frozenset[int]) -> bool:
    code = as_signal(one.exit_code or 0)
    return one.rank in stopped_by_us and code in {-signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT, -signal.SIGABRT}
