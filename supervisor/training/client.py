# SPDX-License-Identifier: Apache-2.0
"""What a training script calls: `supervise()` and the `Run` that it returns.

Nothing here may slow, stop or fail a step: the step path stores into mapped memory and takes no lock. Without a
supervisor, or when its folder cannot be used, everything works and nothing is told. Only wrong use by the
script raises.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat

from supervisor.training import batches, evidence
from supervisor.training.batches import BatchT, Fetch, Loader
from supervisor.training.control import ControlError, ControlView
from supervisor.training.measured import StepLog
from supervisor.training.phases import LEAVING_PHASE, PhaseClock
from supervisor.training.positions import DataPosition, Range, parsed
from supervisor.training.records import Kind
from supervisor.training.ring import RingWriter

_log = logging.getLogger(__name__)

_UNKNOWN_POSITION = -1


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the environment says about this process."""

    folder: Path | None
    """Where ring and control page lie; None when not supervised."""
    run: str
    attempt: int
    skipped: tuple[Range, ...]
    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Assignment:
        """Read `SUPERVISOR_*` as the node agent sets them, and the ranks as torchrun sets them.

        Raises:
            ValueError: a variable is set to what it cannot mean. Skipping must not be left out silently.
        """
        folder = environment.get("SUPERVISOR_RANK_FOLDER")
        try:
            skipped = parsed(environment.get("SUPERVISOR_SKIP", ""))
        except ValueError as error:
            raise ValueError(f"SUPERVISOR_SKIP must be JSON such as [[200, 399]]: {error}") from error
        return cls(
            folder=Path(folder) if folder else None,
            run=environment.get("SUPERVISOR_RUN", ""),
            attempt=_integer(environment, "SUPERVISOR_ATTEMPT", 1),
            skipped=skipped,
            rank=_integer(environment, "RANK", 0),
            local_rank=_integer(environment, "LOCAL_RANK", 0),
            world_size=_integer(environment, "WORLD_SIZE", 1),
        )


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise ValueError(f"{name} must be an integer, not {text!r}") from error


def supervise(environment: Mapping[str, str] = os.environ) -> Run:
    """Tell the supervisor about this process, once, before the training loop.

    Raises:
        ValueError: the environment is set to something that has no meaning.
    """
    assignment = Assignment.from_environment(environment)
    if assignment.folder is None:
        return Run(assignment, None, None)
    try:
        ring = RingWriter(
            assignment.folder / f"rank-{assignment.rank}.ring",
            rank=assignment.rank,
            local_rank=assignment.local_rank,
            world_size=assignment.world_size,
            attempt=assignment.attempt,
        )
    except OSError as error:
        _log.warning("training goes on unsupervised: cannot make a ring in %s: %s", assignment.folder, error)
        return Run(assignment, None, None)
    control = None
    try:
        control = ControlView(assignment.folder / "control")
    except (OSError, ControlError) as error:
        _log.warning("the supervisor cannot ask this rank to stop cleanly: %s", error)
    return Run(assignment, ring, control)


class Run:
    """A rank's line to its supervisor; call it from the thread that trains."""

    def __init__(self, assignment: Assignment, ring: RingWriter | None, control: ControlView | None) -> None:
        self._assignment = assignment
        self._ring = ring
        self._control = control
        self._log = StepLog(ring) if ring is not None else None
        self._phases = PhaseClock()
        self._data = DataPosition(assignment.skipped)
        self._step = 0
        self._trained = _UNKNOWN_POSITION
        self._is_server_tried = False
        self._has_failed = False
        self._outside = (0, 0)
        """Number and begin of the phase that holds outside all others: none while it trains."""
        self._uncaught: evidence.UncaughtException | None = None
        if ring is not None:
            self._uncaught = evidence.UncaughtException(self._fail)
            evidence.enable_fault_stacks()
            self._start_server()
            atexit.register(self.close)
            forget = weakref.WeakMethod(self._forget)
            os.register_at_fork(after_in_child=lambda: (alive := forget()) and alive())

    @property
    def supervised(self) -> bool:
        """Whether there is an agent to tell."""
        return self._ring is not None

    @property
    def attempt(self) -> int:
        """Number of this launch of the run, from 1."""
        return self._assignment.attempt

    @property
    def position(self) -> int:
        """Index of the batch that the step after the current one trains on."""
        return self._data.position

    @property
    def data_position(self) -> DataPosition:
        """The data position with `state_dict` and `load_state_dict`; belongs in the checkpointed state."""
        return self._data

    @property
    def skipped(self) -> tuple[Range, ...]:
        """Ranges of batches in force that are left out, (first, last) with both included."""
        return self._data.skipped

    @property
    def loss_healthy(self) -> bool | None:
        """What the controller last judged about the loss; None when unknown."""
        return self._control.loss_healthy if self._control is not None else None

    @property
    def should_stop(self) -> bool:
        """Whether to save, wait for the commit and leave after the current step."""
        return self._control is not None and self._control.is_stop_due(self._step)

    def role(self, **dimensions: int) -> None:
        """Tell which part of the model this rank holds, such as `role(pipeline=0, tensor=3)`."""
        if self._ring is not None:
            self._ring.set_role(",".join(f"{name}={index}" for name, index in dimensions.items()))

    def report(
        self,
        step: int,
        *,
        loss: SupportsFloat | None = None,
        grad_norm: SupportsFloat | None = None,
        tokens: int = 0,
    ) -> None:
        """Tell that `step` is done.

        Args:
            step: number of the optimizer step, 1, 2, 3, ...
            loss: of this step; a number or a tensor of one element, which is not waited for when it is on an
                accelerator.
            grad_norm: norm of the gradient before clipping, likewise.
            tokens: trained on by this rank in this step.
        """
        self._step = step
        ring, steps = self._ring, self._log
        if ring is None or steps is None:
            return
        if not self._is_server_tried:
            self._start_server()
            self._is_server_tried = True
        now = time.monotonic_ns()
        ring.stand_at(step, now)
        steps.add(step, self._trained, (time.time_ns(), now), loss, grad_norm, tokens, self._phases.taken(now))

    def batches(self, loader: Loader[BatchT], *, start: int = 0) -> Iterator[tuple[int, BatchT]]:
        """Yield (step, batch) from step `start + 1` on, with the skipped ranges left out.

        Args:
            loader: gives batch 0, 1, 2, ... of the whole run: by `loader[index]` (a skipped batch is never loaded), by
                `loader.iter_from(index)`, or by iteration from 0 (what is not wanted is loaded and dropped).
            start: number of steps done, as `restore()` returned it, or 0.

        Raises:
            TypeError: the loader offers none of the three.
            ValueError: `start` does not fit the restored data position.
        """
        self._data.begin(start)
        fetch = batches.fetcher(loader)
        self._step = start
        self._start_server()
        if self._ring is not None:
            self._stand_outside(0, 0)
            self._ring.stand_at(start, time.monotonic_ns())
            self._ring.note(Kind.RESTORED, start, position=self._data.position)
        return self._numbered(fetch, start, may_read_through=batches.is_read_through(loader))

    def _numbered(self, fetch: Fetch[BatchT], start: int, *, may_read_through: bool) -> Iterator[tuple[int, BatchT]]:
        last = -1
        for step, position in enumerate(self._data.ahead(), start + 1):
            began = time.monotonic_ns()
            if may_read_through and position > last + 1:
                with self.phase("fast-forward"):
                    batch = fetch(position)
            else:
                batch = fetch(position)
                self._phases.waited_for_data((time.monotonic_ns() - began) / 1e9)
            if isinstance(batch, batches.EndOfData):
                break
            if self._ring is not None:
                self._ring.alive(time.monotonic_ns())
            self._step, self._trained, last = step, position, position
            self._data.advance(step)
            try:
                yield step, batch
            except GeneratorExit:
                break
        if self._ring is not None:
            self._stand_outside(self._ring.phase_number(LEAVING_PHASE), time.monotonic_ns())

    def _stand_outside(self, phase: int, since_ns: int) -> None:
        self._outside = (phase, since_ns)
        if self._ring is not None and not self._phases.is_open:
            (self._ring.enter if phase else self._ring.leave)(phase, since_ns)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark a known pause, such as `evaluation` or `checkpoint`, that is no hang. Phases nest."""
        if self._ring is None:
            yield
            return
        number, now = self._ring.phase_number(name), time.monotonic_ns()
        self._phases.enter(name, number, now)
        self._ring.enter(number, now)
        self._note(Kind.PHASE_ENTERED, number)
        try:
            yield
        finally:
            outer = self._phases.leave(time.monotonic_ns())
            if self._ring is not None:
                self._ring.leave(*(outer or self._outside))
                self._note(Kind.PHASE_LEFT, number)

    def close(self) -> None:
        """Tell that the run ended in order, and let go of everything; called at exit by itself."""
        if self._uncaught is not None:
            self._uncaught.remove()
        atexit.unregister(self.close)
        if self._log is not None:
            self._log.close()
        if self._ring is not None:
            if not self._has_failed:
                self._ring.note(Kind.FINISHED, self._step)
            ring, self._ring, self._log = self._ring, None, None
            ring.close()

    def _note(self, kind: Kind, phase: int) -> None:
        if self._ring is not None and self._log is not None:
            self._log.write_ready()
            self._ring.note(kind, self._step, phase=phase)

    def _fail(self, exception: str) -> None:
        self._has_failed = True
        if self._ring is not None:
            self._ring.note(Kind.EXCEPTION, self._step, text=exception)

    def _start_server(self) -> None:
        """Start it as soon as the script has loaded torch: the first step may be the one that hangs."""
        if self._ring is None or self._assignment.folder is None or self._is_server_tried:
            return
        if evidence.is_torch_loaded():
            self._is_server_tried = True
            socket = self._assignment.folder / f"rank-{self._assignment.rank}.sock"
            evidence.start_stack_server(socket)

    def _forget(self) -> None:
        """Leave the ring to the parent: a forked child is not the rank."""
        self._ring = self._log = None
