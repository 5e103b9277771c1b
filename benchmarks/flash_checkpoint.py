# SPDX-License-Identifier: Apache-2.0
"""DLRover's flash checkpoint as a peer of `benchmarks.checkpoint_engine`: its launch, and one way to save.

It is no requirement of ours, and lives in whatever environment is named: its saver is a thread of its own agent, so the
ranks run there under `dlrover-run`, with a master on this machine. It writes through the page cache and does not
call fsync; a save counts as committed when its tracker file names the step.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

INSTALL = "pip install 'dlrover[k8s,torch]==0.6.1' protobuf grpcio xxhash"
_TRACKER = "dlrover_latest.txt"
_MASTER_DEADLINE_S = 60.0
_RUN_DEADLINE_S = 1800.0
_END_S = 30.0
_SHARED_MEMORY = Path("/dev/shm")  # where multiprocessing.shared_memory keeps its files
_VERSIONS = """
import importlib.metadata as found, importlib.util, json, xxhash, torch
importlib.util.find_spec("dlrover.trainer.torch.flash_checkpoint.ddp") or exit("no flash checkpoint in it")
print(json.dumps({"dlrover": found.version("dlrover"), "torch": torch.__version__}))
"""


def versions(python: Path) -> dict[str, str] | None:
    """DLRover's and torch's version in an environment; None, said in one line, when the peer cannot run there."""
    try:
        asked = subprocess.run([str(python), "-W", "ignore", "-c", _VERSIONS], capture_output=True, text=True)
    except OSError as error:
        why = str(error)
    else:
        if asked.returncode == 0:
            return dict(json.loads(asked.stdout))
        why = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
    print(f"DLRover is left out, {python} has no whole one ({why}): {INSTALL}, and name that Python with --dlrover")
    return None


def run_ranks(python: Path, ranks: int, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Run a module's ranks under `dlrover-run`, with a master beside it.

    Raises:
        RuntimeError: it failed; the message has the end of its log.
    """
    name = f"benchmark-{uuid.uuid4().hex[:12]}"
    launcher = "from dlrover.trainer.torch.main import main; main()"
    command = [str(python), "-W", "ignore", "-c", launcher, "--nnodes=1", f"--nproc_per_node={ranks}"]
    try:
        with log.open("wb") as stream, _master(python, name, environment, stream.fileno()) as address:
            around = {**environment, "DLROVER_MASTER_ADDR": address, "ELASTIC_JOB_NAME": name}
            with subprocess.Popen([*command, "-m", *arguments], env=around, stdout=stream, stderr=stream) as agent:
                code = _end_of(agent)
        if code:
            raise RuntimeError(f"dlrover-run ended with {code}: {log.read_text()[-2000:]}")
    finally:
        # What its saver leaves behind after a job that went well is as large as the state.
        for left in _SHARED_MEMORY.glob(f"{name}*"):
            left.unlink(missing_ok=True)


def _end_of(agent: subprocess.Popen[bytes]) -> int:
    """Exit code; the agent ends its ranks when it is asked to end, however this wait ends."""
    try:
        return agent.wait(_RUN_DEADLINE_S)
    finally:
        agent.terminate()
        with suppress(subprocess.TimeoutExpired):
            agent.wait(_END_S)
        agent.kill()


@contextmanager
def _master(python: Path, name: str, environment: Mapping[str, str], log: int) -> Iterator[str]:
    """A master of one node; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), "-W", "ignore", "-m", "dlrover.python.master.main", "--platform", "local"]
    command += ["--port", str(port), "--node_num", "1", "--job_name", name]
    with subprocess.Popen(command, env=dict(environment), stdout=log, stderr=log) as master:
        try:
            ends = time.monotonic() + _MASTER_DEADLINE_S
            while not _answers(port):
                if master.poll() is not None or time.monotonic() >= ends:
                    raise RuntimeError(f"DLRover's master does not answer at port {port}, exit code {master.poll()}")
                time.sleep(0.2)
            yield f"127.0.0.1:{port}"
        finally:
            master.terminate()
            with suppress(subprocess.TimeoutExpired):
                master.wait(_END_S)
            master.kill()


def _answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


class FlashCheckpoint:
    """DLRover's checkpointer for a state of which each rank has its own part; saves to the disk."""

    def __init__(self, folder: Path, state: dict[str, Any], ranks: int) -> None:
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        self._folder = folder / "dlrover"
        self._tensors = {name: each.to_local() for name, each in state["tensors"].items()}
        self._checkpointer = DdpCheckpointer(str(self._folder), local_shard_num=ranks, global_shard_num=ranks)
        self._disk = StorageType.DISK

    def save(self, step: int) -> Callable[[], bool]:
        self._checkpointer.save_checkpoint(step, {"tensors": self._tensors}, storage_type=self._disk)
        return lambda: self._is_committed(step)

    def close(self) -> None:
        """Its saver belongs to the agent, which ends with the ranks."""

    def _is_committed(self, step: int) -> bool:
        try:
            return (self._folder / _TRACKER).read_text() == str(step)
        except FileNotFoundError:
            return False
