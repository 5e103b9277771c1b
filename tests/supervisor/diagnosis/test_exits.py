# SPDX-License-Identifier: Apache-2.0
"""What an exit code means where no line says more."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.api import Action, LogSource, RankExit, diagnose


def ends(*codes: int | None, at: tuple[float, ...] = ()) -> list[RankExit]:
    times = at or (100.0,) * len(codes)
    return [RankExit(rank, f"node-{rank}", code, times[rank]) for rank, code in enumerate(codes)]


@pytest.mark.parametrize(
    ("exits", "reason", "action", "rank"),
    [
        pytest.param(ends(1, -9), "NodeFailure", "restart_same", 1, id="killed from outside"),
        pytest.param(ends(1, 137), "NodeFailure", "restart_same", 1, id="killed, as a shell writes it"),
        pytest.param(ends(-6, -9), "NodeFailure", "restart_same", 1, id="an abort is the echo of the kill"),
        pytest.param(ends(1, -11), "RuntimeError", "restart_same", 1, id="one rank of several crashed"),
        pytest.param(ends(-11, -11), "RuntimeError", "fix_user", 0, id="all ranks crashed"),
        pytest.param(ends(-7, 1), "OSError", "fix_user", 0, id="bus error"),
        pytest.param(ends(2, 2), "ArgumentError", "fix_user", 0, id="usage error everywhere"),
        pytest.param(ends(1, 2), "Unknown", "fix_user", 0, id="exit 2 of one rank is no usage error"),
        pytest.param(ends(127), "FileNotFoundError", "fix_user", 0, id="command not found"),
        pytest.param(ends(-15, 0), "ExternalStop", "restart_same", 0, id="stopped from outside"),
        pytest.param(ends(1, 0), "Unknown", "fix_user", 0, id="an error code without a message"),
        pytest.param(ends(-6, None), "Unknown", "restart_same", 0, id="an abort without a message"),
    ],
)
def test_exit_codes_are_read(exits: list[RankExit], reason: str, action: str, rank: int) -> None:
    diagnosis = diagnose([], exits, world_size=len(exits))
    assert (diagnosis.reason, diagnosis.action, diagnosis.rank) == (reason, Action(action), rank)
    assert diagnosis.node == f"node-{rank}"


def test_our_own_kill_is_not_a_cause() -> None:
    diagnosis = diagnose([], ends(3, -9, -15), stopped_by_us=[1, 2])
    assert (diagnosis.reason, diagnosis.rank) == ("Unknown", 0)


def test_a_kill_long_after_an_error_is_somebodys_clearing_up() -> None:
    diagnosis = diagnose([], ends(1, -9, at=(100.0, 130.0)))
    assert diagnosis.rank == 0


def test_the_kernel_log_turns_a_kill_into_memory() -> None:
    kernel = LogSource(
        "dmesg", ["Out of memory: Killed process 8812 (python) total-vm:91881232kB, anon-rss:60112312kB"]
    )
    diagnosis = diagnose([kernel], ends(1, -9))
    assert (diagnosis.reason, diagnosis.action) == ("OutOfMemoryError", Action.FIX_USER)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("  exitcode  : -9 (pid: 3309)", "OutOfMemoryError"),
        ("[launch.py:434:sigkill_handler] ['python3', 'main.py'] exits with return code = -9", "OutOfMemoryError"),
        ("E0517 08:24:03.805000 1406 multiprocessing/api.py:826] failed (exitcode: -11) local_rank: 1", "RuntimeError"),
        ("srun: error: node-004: task 4: Bus error", "OSError"),
    ],
)
def test_a_launchers_words_are_read_where_only_a_log_is_at_hand(line: str, reason: str) -> None:
    diagnosis = diagnose([LogSource("job.log", ["step 1 loss 2.0", line])])
    assert diagnosis.reason == reason
    assert diagnosis.evidence[0].line_number == 2


def test_a_kill_seen_live_is_not_called_memory_because_of_the_launchers_block() -> None:
    block = [
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 3309)",
        "  traceback : Signal 9 (SIGKILL) received",
    ]
    diagnosis = diagnose([LogSource("torchrun.log", block)], ends(1, -9))
    assert (diagnosis.reason, diagnosis.action, diagnosis.rank) == ("NodeFailure", Action.RESTART_SAME, 1)
