# SPDX-License-Identifier: Apache-2.0
"""Of all that was kept of a hang the strongest evidence names the rank that the others wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.diagnosis.flight_recorder import Call, GroupRecord
from supervisor.diagnosis.hang_evidence import RankEvidence, main_thread, process_state, read_evidence
from supervisor.diagnosis.hangs import read_hang
from supervisor.diagnosis.model import Action, Hang

HANGS = Path(__file__).parents[2] / "data" / "hangs"
WAITS = 'Thread 7 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:2501)\n'
LOOPS = 'Thread 7 (active): "MainThread"\n    spin (train.py:7)\n    main (train.py:40)\n'
LOADS = 'Thread 7 (idle): "MainThread"\n    _try_get_data (torch/utils/data/dataloader.py:1131)\n'
SAVES = 'Thread 7 (idle): "MainThread"\n    write (io.py:3)\n    torch.save (serialization.py:4)\n'


def rank(
    state: str = "S", number: int | None = None, stack: str = "", call: str = "all_reduce", channel: str = ""
) -> RankEvidence:
    calls = {} if number is None else {number: Call(call)}
    record = None if number is None else {"gloo/default_pg": GroupRecord(number, 3, calls)}
    return RankEvidence(state, channel, record, stack)


@pytest.mark.parametrize(
    ("seen", "culprit", "name", "ranks", "action"),
    [
        pytest.param(
            [rank("T", 4), rank("S", 5, WAITS)], None, "hang_of_stopped_rank", (0,), "restart_same", id="stopped"
        ),
        pytest.param(
            [rank("S", 5, WAITS), rank("t")], 0, "hang_of_stopped_rank", (1,), "restart_same", id="in a debugger"
        ),
        pytest.param([rank("gone"), rank("S", 5, WAITS)], None, "hang_after_exit", (0,), "restart_same", id="gone"),
        pytest.param(
            [rank("T", 4), rank("S", 5), rank("S", 5, call="barrier")],
            None,
            "hang_of_stopped_rank",
            (0,),
            "restart_same",
            id="a stopped process before a mismatch",
        ),
        pytest.param(
            [rank("S", 5), rank("S", 5, call="barrier"), rank("S", 4)],
            2,
            "collective_mismatch",
            (),
            "fix_user",
            id="a mismatch before the smallest number",
        ),
        pytest.param(
            [rank("S", 5, WAITS), rank("S", 5, LOOPS), rank("S", 4, WAITS)],
            1,
            "hang_of_absent_rank",
            (2,),
            "restart_same",
            id="the smallest number before detector and stack",
        ),
        pytest.param(
            [rank("S", 5, WAITS), rank("S", 4, LOADS)], None, "hang_in_dataloader", (1,), "restart_same", id="loads"
        ),
        pytest.param(
            [rank("S", 5, WAITS), rank("S", 4, SAVES)], None, "hang_in_storage", (1,), "wait_and_retry", id="saves"
        ),
        pytest.param(
            [rank("S", 5), rank("S", 5), rank("R")], 0, "hang_of_mute_rank", (2,), "restart_same", id="mute recorder"
        ),
        pytest.param(
            [rank("S", stack=WAITS), rank("D", channel="nv_ioctl")], 0, "hang_in_kernel", (1,), "restart_same", id="D"
        ),
        pytest.param(
            [rank("S", stack=WAITS), rank("D", channel="nfs_wait_bit_killable")],
            0,
            "hang_in_kernel",
            (1,),
            "wait_and_retry",
            id="D in a file system",
        ),
        pytest.param(
            [rank(stack=WAITS), rank(stack=LOOPS)], 0, "hang_of_late_rank", (0,), "restart_same", id="the detector's"
        ),
        pytest.param(
            [rank(stack=WAITS), rank(stack=LOOPS)], None, "hang_of_one_rank", (1,), "restart_same", id="odd stack"
        ),
        pytest.param(
            [rank("S", 1, WAITS), RankEvidence("R", record={}, stack=LOOPS)],
            None,
            "hang_of_absent_rank",
            (1,),
            "restart_same",
            id="no collective at all",
        ),
        pytest.param([rank(stack=WAITS), rank(stack=WAITS)], None, "hang", (), "restart_same", id="all wait"),
        pytest.param([rank(stack=LOOPS), rank(stack=LOOPS)], None, "hang", (), "restart_same", id="nobody waits"),
        pytest.param([], None, "hang", (), "restart_same", id="nothing was kept"),
    ],
)
def test_the_strongest_evidence_decides(
    seen: list[RankEvidence], culprit: int | None, name: str, ranks: tuple[int, ...], action: str
) -> None:
    reading = read_hang(Hang(7, 9.0, dict(enumerate(seen)), culprit), len(seen))
    assert (reading.name, reading.ranks, reading.action) == (name, ranks, Action(action))
    assert reading.explanation.startswith("No step for 9 s after step 7, and no error.")


def test_a_rank_of_which_nothing_was_kept_is_the_one() -> None:
    seen = {0: rank("S", 5, WAITS), 1: rank("S", 5, WAITS), 3: rank("S", 5, WAITS)}
    reading = read_hang(Hang(None, 9.0, seen), 4)
    assert (reading.name, reading.rank) == ("hang_of_missing_rank", 2)
    assert "before its first step" in reading.explanation and "Rank 2 gave no evidence at all" in reading.explanation


def test_many_ranks_are_named_in_short() -> None:
    seen = {each: rank("T" if each < 12 else "S") for each in range(16)}
    reading = read_hang(Hang(1, 9.0, seen), 16)
    assert reading.rank is None and "Ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more are stopped" in reading.explanation


def test_where_the_absent_rank_stands_is_told_and_proven() -> None:
    reading = read_hang(Hang(7, 9.0, {0: rank("S", 5, WAITS), 1: rank("R", 4, LOOPS)}), 2)
    assert reading.explanation.endswith("It stands in spin (train.py:7).")
    assert [name for name, _ in reading.proofs] == ["flight-recorder-rank-1.json", "stacks-rank-1.txt"]


def test_evidence_of_a_real_frozen_rank_is_read_back() -> None:
    seen = read_evidence(HANGS / "stopped")
    assert (seen[0].state, seen[0].sleeps_in, seen[0].stack) == ("T", "do_signal_stop", "")
    assert (seen[1].state, seen[1].sleeps_in) == ("S", "futex_do_wait")
    assert seen[1].stack.startswith('Thread 30212 (idle): "MainThread"')
    assert read_hang(Hang(120, 5.0, seen), 2).rank == 0


def test_an_empty_folder_and_a_strange_file_are_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "stacks-rank-x.txt").write_text("?")
    assert read_evidence(tmp_path) == read_evidence(tmp_path / "nothing") == {}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("== status\nState:\tD (disk sleep)\n== threads: id\n7 python3 D nfs_wait\n8 x S y\n", ("D", "nfs_wait")),
        ("== status\nState:\tR (running)\n== threads: id\n7 python3 R -\n", ("R", "")),
        ("== status\nState:\tZ (zombie)\n", ("gone", "")),
        ("== threads: id, name, state, sleeping in\n", ("gone", "")),
    ],
)
def test_process_states_are_read(text: str, state: tuple[str, str]) -> None:
    assert process_state(text) == state


def test_only_the_main_threads_stack_counts() -> None:
    by_py_spy = (
        'Process 7\n\nThread 9 (idle): "wandb"\n    wandb (x.py:1)\n\nThread 7 (idle): "MainThread"\n    f (y.py:2)\n'
    )
    assert "wandb" not in main_thread(by_py_spy) and "f (y.py:2)" in main_thread(by_py_spy)
    by_faulthandler = (
        'Thread 0x1 (most recent call first):\n  File "w"\n\nThread 0x2 (most recent call first):\n  File "m"\n'
    )
    assert '"m"' in main_thread(by_faulthandler) and '"w"' not in main_thread(by_faulthandler)
