# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT under the supervisor and breaks it four times: `make demo`.

A rank is killed, a rank is frozen, the supervisor itself is killed with -9, and a stretch of poisoned batches makes the
loss spike. Nothing but the breaking is done by hand in here. At the end stand the timeline, the ETTR and a plot.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor import inspection
from supervisor.controller.api import ControllerError, RunView
from supervisor.core.api import Phase

STEPS = 440
POISON = (260, 279)
RUN = "demo"
WAIT_S = 240.0
CONFIG = f"""\
# The run is short, so going back and leaving out are short too.
[policy]
rollback_margin_steps = 10
skip_batches = {POISON[1] - POISON[0] + 1}

[checkpoint]
uri = "{{checkpoints}}"
"""


class Demo:
    """One run in `folder`, and the hand that breaks it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_folder = folder / "run"
        self.digest = folder / "weights.sha256"
        checkpoints = folder / "checkpoints"
        config = folder / "demo.toml"
        config.write_text(CONFIG.format(checkpoints=checkpoints))
        script = Path(__file__).with_name("train_gpt.py")
        training = f"torchrun --standalone --nproc-per-node 2 {script} --checkpoints {checkpoints} --save-every 20"
        poison = f"--steps {STEPS} --poison {POISON[0]}-{POISON[1]} --digest {self.digest}"
        supervised = f"supervisor run -c {config} --name {RUN} --folder {self.run_folder} --output none --"
        self.command = f"{supervised} {training} {poison}".split()
        self._began = time.monotonic()
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._supervisor = subprocess.Popen(self.command)

    def say(self, text: str) -> None:
        sys.stdout.write(f"\n=== {time.monotonic() - self._began:5.0f} s  {text}\n")
        sys.stdout.flush()

    def kill_supervisor(self) -> None:
        assert self._supervisor is not None
        self._supervisor.kill()
        self._supervisor.wait()

    def wait_until(self, what: str, holds: Callable[[RunView], bool]) -> RunView:
        """Look twice a second; the supervisor's own lines say meanwhile what it does."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if self._supervisor is not None and self._supervisor.poll() is not None:
                sys.exit(f"demo: the supervisor ended with {self._supervisor.returncode} while waiting for {what}")
            try:
                view = inspection.view(self.run_folder)
            except ControllerError:
                view = None
            if view is not None and holds(view):
                return view
            time.sleep(0.5)
        sys.exit(f"demo: {what} was not reached within {WAIT_S:.0f} s")

    def wait_for_step(self, step: int, attempt: int) -> RunView:
        def reached(view: RunView) -> bool:
            trains = view.state.phase is Phase.TRAINING and view.state.attempt == attempt
            return trains and (view.numbers.step or 0) >= step

        return self.wait_until(f"step {step} of attempt {attempt}", reached)

    def end(self) -> int:
        assert self._supervisor is not None
        return self._supervisor.wait(timeout=WAIT_S)


def rank_pid(run_folder: Path, rank: int) -> int:
    """The process of a rank, by its environment; the run's folder tells it from that of another demo."""
    wanted = {b"RANK=%d" % rank, b"LOCAL_RANK=%d" % rank, os.fsencode(f"CHECKPOINT_FENCE={run_folder}/FENCE.json")}
    for pid, environment in environments():
        if wanted <= environment:
            return pid
    sys.exit(f"demo: no process of rank {rank} of the run in {run_folder} was found")


def environments() -> Iterator[tuple[int, set[bytes]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), set((folder / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue


def break_it(demo: Demo) -> None:
    demo.say("training starts; four things will break")
    demo.start()
    demo.wait_for_step(60, attempt=1)
    demo.say("breaking 1 of 4: kill -9 of rank 1")
    os.kill(rank_pid(demo.run_folder, 1), signal.SIGKILL)
    demo.wait_for_step(110, attempt=2)
    demo.say("breaking 2 of 4: rank 0 is frozen (SIGSTOP), which no exit code tells")
    os.kill(rank_pid(demo.run_folder, 0), signal.SIGSTOP)
    demo.wait_for_step(150, attempt=3)
    demo.say("breaking 3 of 4: kill -9 of the supervisor; training goes on without it")
    demo.kill_supervisor()
    time.sleep(3)
    demo.say("the same command again: it takes the running attempt over")
    demo.start()
    demo.wait_for_step(200, attempt=3)
    demo.say(f"breaking 4 of 4: batches {POISON[0]}-{POISON[1]} are poisoned and lie ahead")


def show(demo: Demo) -> None:
    """What became of it: timeline, numbers, plot."""
    plot = demo.folder / "loss.png"
    for words in (
        ["story", str(demo.run_folder)],
        ["status", str(demo.run_folder)],
        ["plot", str(demo.run_folder), "-o", str(plot)],
    ):
        sys.stdout.write("\n")
        sys.stdout.flush()
        subprocess.run([sys.executable, "-m", "supervisor", *words], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="is emptied first")
    folder: Path = parser.parse_args().folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    demo = Demo(folder)
    break_it(demo)
    code = demo.end()
    show(demo)
    demo.say(f"the supervisor ended with {code}; final weights {demo.digest.read_text().strip()[:16]}")
    return code


if __name__ == "__main__":
    sys.exit(main())
