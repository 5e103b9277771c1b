# SPDX-License-Identifier: Apache-2.0
"""The example trains to the same weights, bit for bit, whether plain, supervised, or stopped and resumed."""

from __future__ import annotations

import difflib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.training.control import ControlPage
from supervisor.training.records import Kind
from supervisor.training.ring import RingReader

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 10
SMALL = ["--layers=1", "--width=32", "--heads=2", "--batch=4", "--context=16", "--evaluate-every=4", f"--steps={STEPS}"]
DEADLINE_SECONDS = 100.0


@contextmanager
def torchrun(*command: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start two ranks; whatever happens, none is left behind."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SUPERVISOR_", "CHECKPOINT_"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *map(str, command)],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


def trained(script: str, *options: str | Path, **environment: str) -> str:
    """Train to the end or to the stop; return what was printed."""
    with torchrun(EXAMPLES / script, *SMALL, *options, **environment) as process:
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, output
    return output


def weights(output: str) -> str:
    """Return the digest that a finished training printed."""
    (line,) = [line for line in output.splitlines() if line.startswith("weights ")]
    return line.removeprefix("weights ")


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """Return the digest of the weights that the plain script trains."""
    return weights(trained("train_gpt_plain.py"))


def supervised_by(folder: Path) -> tuple[ControlPage, dict[str, str]]:
    folder.mkdir(mode=0o700)
    environment = {"SUPERVISOR_RANK_FOLDER": str(folder), "SUPERVISOR_RUN": "gpt", "SUPERVISOR_ATTEMPT": "1"}
    return ControlPage.create(folder / "control"), environment


def within_deadline(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.system
def test_without_a_supervisor_the_weights_are_those_of_the_plain_script(tmp_path: Path, undisturbed: str) -> None:
    digest = tmp_path / "digest"
    trained("train_gpt.py", "--checkpoints", tmp_path / "checkpoints", "--digest", digest)
    assert digest.read_text() == undisturbed + "\n"


@pytest.mark.system
def test_stopped_on_request_and_resumed_the_weights_are_the_same(tmp_path: Path, undisturbed: str) -> None:
    page, environment = supervised_by(tmp_path / "1")
    page.request_stop(4)
    options = ("--checkpoints", tmp_path / "checkpoints", "--save-every", "100")
    assert "stopped after step 4" in trained("train_gpt.py", *options, **environment)
    _, environment = supervised_by(tmp_path / "2")
    assert weights(trained("train_gpt.py", *options, **environment)) == undisturbed

    for attempt, begin, steps in (("1", 0, range(1, 5)), ("2", 4, range(5, STEPS + 1))):
        for rank in (0, 1):
            reader = RingReader(tmp_path / attempt / f"rank-{rank}.ring")
            records = reader.poll()
            assert (reader.identity.rank, reader.identity.world_size, reader.dropped) == (rank, 2, 0)
            told = [record for record in records if record.kind is Kind.STEP]
            assert [(record.step, record.position) for record in told] == [(step, step - 1) for step in steps]
            assert all(record.loss and record.grad_norm and record.tokens == 32 for record in told)
            assert [record.step for record in records if record.kind is Kind.RESTORED] == [begin]
            entered = {reader.phase_name(record.phase) for record in records if record.kind is Kind.PHASE_ENTERED}
            assert "evaluation" in entered and records[-1].kind is Kind.FINISHED


@pytest.mark.system
def test_skipping_poisoned_batches_equals_never_having_had_them(tmp_path: Path, undisturbed: str) -> None:
    skip = {"SUPERVISOR_SKIP": "[[3, 5]]"}
    clean = weights(trained("train_gpt.py", "--checkpoints", tmp_path / "1", **skip))
    poison = ("--poison=3-4", "--nan-at=5")
    assert weights(trained("train_gpt.py", "--checkpoints", tmp_path / "2", *poison, **skip)) == clean != undisturbed


SPOILED = """
import json
import sys
sys.path.insert(0, {examples!r})
import gpt, torch
options = gpt.arguments("").parse_args(["--poison=3-4", "--nan-at=5"])
place = gpt.start(1)
network, batches = gpt.GPT(options), gpt.Batches(options, place)
spoiled = [batches[index] for index in range(2, 7)]
print(json.dumps([[bool(batch[1].min() >= 128), bool(network(*batch).isnan())] for batch in spoiled]))
torch.distributed.destroy_process_group()
"""


@pytest.mark.system
def test_only_the_named_batches_are_spoiled() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPOILED.format(examples=str(EXAMPLES))],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    clean, garbage, not_a_number = [False, False], [True, False], [False, True]
    assert json.loads(done.stdout) == [clean, garbage, garbage, not_a_number, clean]


HANGING = """
import time
import torch, torch.distributed as dist
from supervisor.training import supervise
dist.init_process_group("gloo")
run = supervise()
for step, _ in run.batches(range(100)):
    if step == 3 and dist.get_rank() == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(1))
    run.report(step, loss=1.0)
"""


def answer(path: Path, request: str) -> str:
    """Ask a rank's worker server."""
    connection = http.client.HTTPConnection("rank")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(DEADLINE_SECONDS)
    connection.sock.connect(str(path))
    try:
        connection.request("POST", f"/handler/{request}")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.system
def test_a_rank_that_hangs_in_a_collective_still_gives_evidence(tmp_path: Path) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    _, environment = supervised_by(tmp_path / "ranks")
    rings = [tmp_path / "ranks" / f"rank-{rank}.ring" for rank in (0, 1)]
    sockets = [ring.with_suffix(".sock") for ring in rings]
    with torchrun(script, **environment):
        within_deadline(lambda: all(ring.exists() for ring in rings))
        readers = [RingReader(ring) for ring in rings]
        within_deadline(lambda: all(reader.activity().step == 2 for reader in readers))
        within_deadline(lambda: "all_reduce" in answer(sockets[0], "dump_traceback"))
        assert "hanging.py" in answer(sockets[1], "dump_traceback")
        records = [json.loads(answer(path, "fr_trace_json")) for path in sockets]
        enqueued = [int(each["pg_status"]["0"]["last_enqueued_collective"]) for each in records]
        assert enqueued[0] == enqueued[1] + 1, "the rank that did not join has enqueued one collective less"


FORKING = """
import os, sys
import torch
from supervisor.training import supervise
run = supervise()
if (child := os.fork()) == 0:
    run.report(99)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
run.report(1)
"""


@pytest.mark.system
def test_a_forked_child_of_a_rank_with_a_worker_server_ends_by_itself(tmp_path: Path) -> None:
    _, environment = supervised_by(tmp_path / "ranks")
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ranks" / "rank-0.sock").exists(), "the server had been started"
    assert [record.step for record in RingReader(tmp_path / "ranks" / "rank-0.ring").poll()] == [1, 1]


def test_supervision_takes_few_lines() -> None:
    plain, supervised = ((EXAMPLES / name).read_text().splitlines() for name in ("train_gpt_plain.py", "train_gpt.py"))
    changed = [line for line in difflib.ndiff(plain, supervised) if line.startswith(("+ ", "- "))]
    assert 0 < len(changed) < 60
