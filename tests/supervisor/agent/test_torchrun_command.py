# SPDX-License-Identifier: Apache-2.0
"""A torchrun command is taken apart as torchrun itself does, and flags that fight with supervision are named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.agent.torchrun_command import TorchrunCommand, conflicts, parse


def parsed(text: str) -> TorchrunCommand:
    command = parse(text.split())
    assert command is not None
    return command


def messages(text: str, nodes: int = 1) -> list[str]:
    return [conflict.flag for conflict in conflicts(parsed(text), nodes=nodes)]


def test_flags_end_where_the_script_begins() -> None:
    command = parsed("torchrun --standalone --nproc-per-node 2 train.py --log-dir mine -r 3")
    assert (command.script, command.script_arguments) == ("train.py", ("--log-dir", "mine", "-r", "3"))
    assert command.value("standalone") == "" and command.ranks == 2
    assert conflicts(command) == ()


@pytest.mark.parametrize(
    ("text", "interpreter", "program"),
    [
        ("/opt/bin/torchrun train.py", (), "/opt/bin/torchrun"),
        ("/opt/bin/python3 /opt/bin/torchrun train.py", ("/opt/bin/python3",), "/opt/bin/torchrun"),
        ("python -m torch.distributed.run train.py", ("python",), "torch.distributed.run"),
        (
            "python3.11 -u -X dev -m torch.distributed.launch train.py",
            ("python3.11", "-u", "-X", "dev"),
            "torch.distributed.launch",
        ),
    ],
)
def test_every_spelling_of_torchrun_is_known(text: str, interpreter: tuple[str, ...], program: str) -> None:
    command = parsed(text)
    assert (command.interpreter, command.program, command.script) == (interpreter, program, "train.py")


@pytest.mark.parametrize(
    "text", ["", "python train.py", "python -m accelerate.launch train.py", "bash -m torchrun", "srun"]
)
def test_other_commands_are_not_torchrun(text: str) -> None:
    assert parse(text.split()) is None


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("torchrun train.py", 1),
        ("torchrun --nproc_per_node=8 train.py", 8),
        ("torchrun --nproc 4 train.py", 4),
        ("torchrun --nproc-per-node gpu train.py", None),
    ],
)
def test_ranks_of_a_node_are_a_number_or_left_to_torchrun(text: str, ranks: int | None) -> None:
    assert parsed(text).ranks == ranks


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("torchrun --max-restarts 3 train.py", ["--max-restarts"]),
        ("torchrun --max_restarts=1 train.py", ["--max_restarts"]),
        ("torchrun --max-restarts=0 train.py", []),
        ("torchrun --log_dir=/tmp/logs train.py", ["--log_dir"]),
        ("torchrun -r3 -t 1 train.py", ["-r", "-t"]),
        ("torchrun --redirects 3 --tee 0:3 train.py", ["--redirects", "--tee"]),
        ("torchrun --nnodes 1 --standalone --rdzv-endpoint=h:1 train.py", []),
    ],
)
def test_a_flag_that_the_supervisor_sets_itself_is_a_conflict(text: str, flags: list[str]) -> None:
    assert messages(text) == flags


def test_how_nodes_meet_is_the_supervisors_business_only_when_there_are_several() -> None:
    text = "torchrun --nnodes=2 --node-rank 1 --rdzv-backend c10d --rdzv_endpoint h:1 --standalone train.py"
    assert messages(text) == []
    assert messages(text, nodes=2) == ["--nnodes", "--node-rank", "--rdzv-backend", "--rdzv_endpoint", "--standalone"]


def test_a_conflict_names_the_flag_and_what_to_do() -> None:
    (conflict,) = conflicts(parsed("torchrun --max-restarts 3 train.py"))
    assert conflict.message == (
        "--max-restarts in the torchrun command: the supervisor restarts ranks itself, so torchrun must not; "
        "leave the flag out"
    )


FLAGS = st.sampled_from(
    [["--standalone"], ["--nproc-per-node", "2"], ["--nnodes=1"], ["-m"], ["--rdzv-id", "x"], ["-r3"]]
)


@settings(max_examples=100)
@given(flags=st.lists(FLAGS, max_size=5), arguments=st.lists(st.text("ab-=", min_size=1, max_size=5), max_size=4))
def test_the_arguments_put_together_again_mean_the_same(flags: list[list[str]], arguments: list[str]) -> None:
    words = [word for flag in flags for word in flag]
    command = parse(["torchrun", *words, "train.py", *arguments])
    assert command is not None
    assert command.script_arguments == tuple(arguments)
    assert parse(["torchrun", *command.arguments]) == command
