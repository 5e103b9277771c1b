# SPDX-License-Identifier: Apache-2.0
"""Of many ranks' messages the cause is named, not the loudest symptom."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.diagnosis.api import (
    Action,
    Category,
    Diagnosis,
    Hang,
    LogSource,
    RankEvidence,
    RankExit,
    Stream,
    diagnose,
    to_json,
)

PEER = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:46231"
WATCHDOG = (
    "[rank{rank}]:[E626 05:06:30.929096625 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=16384, NumelOut=16384, Timeout(ms)=600000)"
    " ran for {ran} milliseconds before timing out."
)


def traceback(error: str, file: str = "train.py") -> list[str]:
    return ["Traceback (most recent call last):", f'  File "{file}", line 9, in main', "    step()", error]


def training(steps: int = 30) -> list[str]:
    return [f"2024-05-01 10:00:{i % 60:02d} step {i} loss {3 - i / 100:.3f} grad norm 0.91" for i in range(steps)]


def ranks(*endings: Sequence[str]) -> list[LogSource]:
    return [
        LogSource(f"rank{rank}.log", [*training(), *ending], rank=rank, node=f"node-{rank // 2}")
        for rank, ending in enumerate(endings)
    ]


def watchdog(rank: int, seq: int = 77, op: str = "ALLREDUCE", ran: int = 600013) -> str:
    return WATCHDOG.format(rank=rank, seq=seq, op=op, ran=ran)


def test_the_quiet_local_error_wins_over_the_loud_peers() -> None:
    diagnosis = diagnose(ranks(traceback(PEER) * 5, traceback(PEER), traceback("ValueError: boom"), traceback(PEER)))
    assert (diagnosis.reason, diagnosis.rank, diagnosis.node) == ("ValueError", 2, "node-1")
    assert diagnosis.action is Action.FIX_USER and diagnosis.also_seen == ("NodeFailure",)
    assert diagnosis.evidence[0].text == "ValueError: boom"
    assert diagnosis.evidence[0].file == "rank2.log" and diagnosis.evidence[0].line_number == 34


def test_an_error_that_all_ranks_met_names_no_rank() -> None:
    diagnosis = diagnose(ranks(traceback("KeyError: 'x'"), traceback("KeyError: 'x'"), traceback("KeyError: 'x'")))
    assert (diagnosis.reason, diagnosis.rank, diagnosis.node) == ("KeyError", None, None)
    assert "3 ranks" in diagnosis.explanation


def test_the_same_traceback_in_the_launchers_output_is_not_another_rank() -> None:
    launcher = LogSource("launcher.err", traceback("KeyError: 'x'"), stream=Stream.LAUNCHER)
    diagnosis = diagnose([launcher, *ranks([], traceback("KeyError: 'x'"))])
    assert (diagnosis.rank, diagnosis.node) == (1, "node-0")


def test_of_several_own_errors_the_earliest_by_exit_time_is_the_root() -> None:
    sources = ranks(traceback("RuntimeError: queue is closed"), traceback("ValueError: boom"))
    exits = [RankExit(0, "node-0", 1, 105.0), RankExit(1, "node-0", 1, 101.0)]
    assert diagnose(sources, exits).reason == "ValueError"


def test_of_several_own_errors_the_earliest_by_time_stamp_is_the_root() -> None:
    late = ["2024-05-01 10:09:00 [ERROR] RuntimeError: queue is closed"]
    early = ["2024-05-01 10:08:00 [ERROR] ValueError: boom"]
    assert diagnose(ranks(late, early)).reason == "ValueError"


def test_a_rank_that_was_killed_first_makes_its_neighbours_error_an_echo() -> None:
    sources = ranks(traceback("RuntimeError: lost somebody"), [])
    exits = [RankExit(0, "node-0", 1, 101.0), RankExit(1, "node-0", -9, 100.0)]
    diagnosis = diagnose(sources, exits)
    assert (diagnosis.reason, diagnosis.rank, diagnosis.action) == ("NodeFailure", 1, Action.RESTART_SAME)


def test_where_others_complain_the_rank_that_left_without_a_word_is_the_culprit() -> None:
    sources = ranks(traceback(PEER), [])
    diagnosis = diagnose(sources, [RankExit(0, "node-0", 1, 100.0), RankExit(1, "node-0", 3, 100.4)])
    assert (diagnosis.reason, diagnosis.rank, diagnosis.action) == ("Unknown", 1, Action.FIX_USER)
    stopped = diagnose(sources, [RankExit(0, "node-0", 1, 100.0), RankExit(1, "node-0", -15, 100.4)])
    assert (stopped.reason, stopped.rank, stopped.action) == ("ExternalStop", 1, Action.RESTART_SAME)


def test_a_driver_error_on_several_nodes_isolates_none_of_them() -> None:
    error = traceback("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version")
    alone = diagnose(ranks(error, [], [], []))
    assert (alone.action, alone.node) == (Action.ISOLATE_NODE_AND_RESTART, "node-0")
    everywhere = diagnose(ranks(error, error, error, error))
    assert (everywhere.action, everywhere.node) == (Action.FIX_USER, None)


def test_peers_messages_alone_are_restarted() -> None:
    diagnosis = diagnose(ranks(traceback(PEER), traceback(PEER)))
    assert (diagnosis.reason, diagnosis.action, diagnosis.rank) == ("NodeFailure", Action.RESTART_SAME, None)


def test_a_worker_killed_without_a_word_of_memory_is_restarted_when_seen_live() -> None:
    sources = ranks(traceback("RuntimeError: DataLoader worker (pid 8102) is killed by signal: Killed. "))
    assert diagnose(sources).reason == "OutOfMemoryError"
    live = diagnose(sources, [RankExit(0, "node-0", 1, 100.0)])
    assert (live.reason, live.action) == ("DataloaderKilled", Action.RESTART_SAME)


def test_the_place_of_a_python_error_is_named_outside_of_libraries() -> None:
    lines = traceback("TypeError: x")
    lines[3:3] = ['  File "/usr/lib/python3.11/site-packages/torch/nn/m.py", line 3, in forward', "    y"]
    assert "It says: TypeError: x. Raised at train.py:9 in main." in diagnose(ranks(lines)).explanation


def test_an_own_error_before_a_kill_stays_the_cause() -> None:
    sources = ranks(traceback("RuntimeError: bad shape"), [])
    exits = [RankExit(0, "node-0", 1, 100.0), RankExit(1, "node-0", -9, 130.0)]
    assert diagnose(sources, exits).reason == "RuntimeError"


def test_kernel_evidence_beats_everything_in_the_logs() -> None:
    kernel = LogSource(
        "node-1/dmesg.log",
        ["NVRM: Xid (PCI:0000:3d:00): 79, pid=12, name=python, GPU has fallen off the bus."],
        node="node-1",
        stream=Stream.KERNEL,
    )
    sources = [*ranks(traceback(PEER), traceback("RuntimeError: CUDA error: unknown error")), kernel]
    diagnosis = diagnose(sources)
    assert (diagnosis.reason, diagnosis.node, diagnosis.fatal) == ("GPUFellOffBus", "node-1", True)
    assert diagnosis.action is Action.ISOLATE_NODE_AND_RESTART


def test_a_kernel_line_never_hides_a_mistake_of_the_script() -> None:
    kernel = LogSource(
        "kernel-n0.log", ["kernel: Out of memory: Killed process 8812 (cron) total-vm:9kB"], stream=Stream.KERNEL
    )
    exits = [RankExit(0, "n0", 1, 100.0), RankExit(1, "n0", -15, 100.1)]
    sources = ranks(traceback("KeyError: 'x'"), [])
    assert diagnose(sources, exits, stopped_by_us=[1], kernel=[kernel]).reason == "KeyError"
    killed = [RankExit(0, "n0", -9, 100.0), RankExit(1, "n0", -15, 100.1)]
    assert diagnose(ranks([], []), killed, stopped_by_us=[1], kernel=[kernel]).reason == "OutOfMemoryError"


def test_a_kernel_line_of_days_ago_explains_no_failure_of_today() -> None:
    today = time.mktime((2026, 3, 12, 10, 0, 0, 0, 0, -1))
    line = "2026-03-{day}T09:59:58.000 kernel: Out of memory: Killed process 8812 (python) total-vm:9kB"
    killed = [RankExit(0, "n0", -9, today)]

    def reason(day: str) -> str:
        kernel = LogSource("kernel-n0.log", [line.format(day=day)], stream=Stream.KERNEL)
        return diagnose([], killed, failed_at=today, kernel=[kernel]).reason

    assert (reason("12"), reason("10")) == ("OutOfMemoryError", "NodeFailure")


def test_the_launchers_own_death_is_a_cause_only_where_nothing_else_is() -> None:
    diagnosis = diagnose([], launcher_exit=-9)
    assert (diagnosis.reason, diagnosis.action) == ("NodeFailure", Action.RESTART_SAME)
    assert "The launcher itself ended with -9." in diagnosis.explanation
    assert diagnose(ranks(traceback("KeyError: 'x'")), launcher_exit=-9).reason == "KeyError"
    assert not diagnose([], launcher_exit=1).found_failure


def test_an_error_of_all_ranks_is_one_although_its_words_differ_by_rank() -> None:
    diagnosis = diagnose(ranks(*(traceback(f"ValueError: rank {rank} got 3 of 4") for rank in range(4))))
    assert (diagnosis.reason, diagnosis.rank, diagnosis.node) == ("ValueError", None, None)
    assert "4 ranks met the same error" in diagnosis.explanation
    assert {line.file for line in diagnosis.evidence} == {f"rank{rank}.log" for rank in range(4)}


def test_a_device_assert_is_the_scripts_although_cuda_and_the_kernel_complain() -> None:
    noise = ["NVRM: Xid (PCI:0000:cb:00): 43, pid=1, name=python, Ch 00000008"]
    lines = [
        "cuda/IndexKernel.cu:93: operator(): block: [0,0,0], thread: [89,0,0] Assertion `i < n` failed.",
        *traceback("RuntimeError: CUDA error: device-side assert triggered"),
        "ncclUnhandledCudaError: Call to CUDA function failed.",
    ]
    diagnosis = diagnose([*ranks(lines), LogSource("dmesg", noise, stream=Stream.KERNEL)])
    assert (diagnosis.reason, diagnosis.action) == ("IndexError", Action.FIX_USER)


def test_a_full_disk_that_left_a_damaged_checkpoint_means_an_earlier_step() -> None:
    lines = [
        "OSError: [Errno 28] No space left on device",
        *traceback("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    ]
    diagnosis = diagnose(ranks(lines))
    assert (diagnosis.reason, diagnosis.action) == ("S3StorageError", Action.ROLLBACK)


def test_time_outs_name_the_rank_that_says_nothing() -> None:
    diagnosis = diagnose(ranks([watchdog(0)], [watchdog(1)], [], [watchdog(3)]), world_size=4)
    assert (diagnosis.reason, diagnosis.rank, diagnosis.node) == ("NCCLTimeoutError", 2, "node-1")
    assert diagnosis.action is Action.RESTART_SAME and "600 s before" in diagnosis.explanation


def test_different_collectives_under_one_number_are_the_scripts() -> None:
    diagnosis = diagnose(ranks([watchdog(0)], [watchdog(1, op="BROADCAST")]), world_size=2)
    assert (diagnosis.reason, diagnosis.action) == ("RuntimeError", Action.FIX_USER)


def test_a_time_out_far_beyond_its_limit_means_a_frozen_host() -> None:
    diagnosis = diagnose(ranks([watchdog(0, ran=25_624_887)], [watchdog(1, seq=70, ran=25_625_251)]), world_size=2)
    assert diagnosis.reason == "NodeFailure"


@pytest.mark.parametrize(
    ("error", "file", "service"),
    [
        ("wandb.errors.CommError: Run initialization has timed out after 90.0 sec.", "train.py", "wandb"),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries",
            "train.py",
            "huggingface",
        ),
        ("ConnectionError: [Errno 101] unreachable", "/site-packages/wandb/sdk/run.py", "wandb"),
        ("ConnectionError: HTTPConnectionPool(host='pushgateway', port=9091): refused", "train.py", "metrics"),
    ],
)
def test_an_outside_service_is_neither_a_node_nor_the_script(error: str, file: str, service: str) -> None:
    diagnosis = diagnose(
        ranks(traceback(error, file), traceback(PEER)), [RankExit(0, "node-0", 1), RankExit(1, "node-0", 1)]
    )
    assert (diagnosis.reason, diagnosis.service) == ("ConnectionError", service)
    assert diagnosis.category is Category.INFRASTRUCTURE and diagnosis.action is Action.WAIT_AND_RETRY


def test_an_error_that_training_survived_is_not_the_cause() -> None:
    handled = traceback("OSError: [Errno 28] No space left on device: '/metrics'")
    lines = [*handled, *training(), *traceback("TypeError: unsupported operand")]
    diagnosis = diagnose([LogSource("rank0.log", lines, rank=0)])
    assert (diagnosis.reason, diagnosis.also_seen) == ("TypeError", ("S3StorageError",))


def test_the_launchers_block_is_unwrapped() -> None:
    lines = [
        "train.py FAILED",
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2023-05-19_16:39:58",
        "  host      : node-001",
        "  rank      : 5 (local_rank: 1)",
        "  exitcode  : 1 (pid: 78971)",
        "  error_file: /tmp/error.json",
        "  traceback : Traceback (most recent call last):",
        '    File "record.py", line 350, in wrapper',
        "      return f(*args, **kwargs)",
        "  ZeroDivisionError: division by zero",
        "============================================================",
    ]
    diagnosis = diagnose([LogSource("torchrun.log", lines)])
    assert (diagnosis.reason, diagnosis.rank, diagnosis.node) == ("ZeroDivisionError", 5, "node-001")


def test_an_error_file_is_read() -> None:
    text = (
        '{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback (most recent call last):'
        '\\n  File \\"a.py\\", line 1, in f\\n    g()\\nValueError: boom\\n", "timestamp": "1700000000"}}}'
    )
    diagnosis = diagnose([LogSource("attempt/0/error.json", [text], rank=3)])
    assert (diagnosis.reason, diagnosis.rank) == ("ValueError", 3)


def test_a_hang_names_the_rank_that_the_others_wait_for() -> None:
    waits = RankEvidence("S", stack='Thread 1 (idle): "MainThread"\n    all_reduce (distributed_c10d.py:2501)\n')
    loads = RankEvidence("S", stack='Thread 1 (idle): "MainThread"\n    _try_get_data (dataloader.py:1131)\n')
    hang = Hang(812, 61.0, {0: waits, 1: loads, 2: waits}, folder="/run/incidents/0001")
    diagnosis = diagnose(ranks([], [], []), world_size=3, hang=hang, stopped_by_us=[0, 1, 2])
    assert (diagnosis.reason, diagnosis.rank, diagnosis.node) == ("DataloaderKilled", 1, "node-0")
    assert diagnosis.evidence[0].file == "/run/incidents/0001/stacks-rank-1.txt"
    assert diagnosis.evidence[0].text == "_try_get_data (dataloader.py:1131)"


def test_a_stopped_rank_is_named_and_its_node_is_not_suspected() -> None:
    hang = Hang(812, 61.0, {0: RankEvidence("T"), 1: RankEvidence("S")})
    diagnosis = diagnose(ranks([], []), world_size=2, hang=hang, stopped_by_us=[0, 1])
    assert (diagnosis.reason, diagnosis.rank, diagnosis.node) == ("ExternalStop", 0, None)


def test_a_hang_without_stacks_is_a_silent_hang() -> None:
    exits = [RankExit(0, "node-0", -9), RankExit(1, "node-0", -9)]
    diagnosis = diagnose(ranks([], []), exits, hang=Hang(5, 61.0), stopped_by_us=[0, 1])
    assert (diagnosis.reason, diagnosis.action) == ("SilentHang", Action.RESTART_SAME)


def test_a_healthy_log_has_no_failure() -> None:
    diagnosis = diagnose(ranks([], []))
    assert not diagnosis.found_failure and diagnosis.decided_by == "none" and diagnosis.reason == "Unknown"
    assert "No failure found in 60 lines" in diagnosis.explanation


def test_a_service_that_was_tried_again_while_training_went_on_is_no_failure() -> None:
    lines = [*training(5), "Retrying in 1s [Retry 1/5].", "wandb: Network error (ReadTimeout), entering retry loop."]
    assert not diagnose([LogSource("job.log", [*lines, *training(5)])]).found_failure
    stopped = diagnose([LogSource("job.log", lines)])
    assert (stopped.reason, stopped.service) == ("ConnectionError", "huggingface")


@pytest.mark.parametrize(
    "line",
    [
        "validation error rate 0.12",
        "0 errors, 0 warnings",
        "UserWarning: Error bars are not shown",
        "[W socket.cpp:697] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "[W1130 21:26:14.918275253 WorkerServer.cpp:113] [c10d] Server listening to UNIX /dev/shm/x/rank-0.sock",
        "[W1130 21:26:14.918275253 WorkerServer.cpp:98] [c10d] Server shutting down",
        "step 4 loss: 2.1 | number of nan iterations: 0 | inf checks: on",
        "NCCL INFO Connected all trees",
        "saving checkpoint; exit code of the last hook: 0",
    ],
)
def test_ordinary_lines_are_no_failure(line: str) -> None:
    assert not diagnose([LogSource("job.log", [*training(3), line, *training(3)])]).found_failure


def test_a_wrong_value_is_never_called_the_echo_of_a_crash() -> None:
    exits = [RankExit(0, "node-0", 1, 101.0), RankExit(1, "node-0", -11, 100.0)]
    assert diagnose(ranks(traceback("ValueError: boom"), []), exits).reason == "ValueError"


def test_the_json_object_has_the_fields_that_others_script_against() -> None:
    answer = to_json(diagnose(ranks(traceback("ValueError: boom"))))
    assert answer["reason"] == "ValueError" and answer["category"] == "framework" and answer["action"] == "fix_user"
    assert answer["evidence"][0] == {"file": "rank0.log", "line_number": 34, "text": "ValueError: boom"}
    assert {"confidence", "node", "rank", "also_seen", "explanation", "suggestion", "decided_by"} <= set(answer)


LINES = st.one_of(
    st.text(max_size=200),
    st.sampled_from([PEER, *traceback("ValueError: boom"), watchdog(0), "Failures:", "  traceback : Traceback (most"]),
)


@given(st.lists(LINES, max_size=30), st.lists(st.sampled_from([0, 1, 2, -6, -9, -11, 137, None]), max_size=3))
@settings(max_examples=150, deadline=None)
def test_whatever_the_lines_there_is_an_answer(lines: list[str], codes: list[int | None]) -> None:
    exits = [RankExit(rank, "n", code) for rank, code in enumerate(codes)]
    diagnosis: Diagnosis = diagnose([LogSource("x", lines)], exits)
    assert diagnosis.found_failure or diagnosis.reason == "Unknown"
    assert len(diagnosis.evidence) <= 5
