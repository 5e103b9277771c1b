# SPDX-License-Identifier: Apache-2.0
"""Looking at a run and giving it orders from another process: through its controller, or through its folder alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schedulers.registry import open_scheduler
from supervisor.agent.link import LinkError, Session
from supervisor.controller import incident_files
from supervisor.controller.api import ControllerError, JournalRecord, LiveNumbers, RunView
from supervisor.controller.journal import read_journal
from supervisor.controller.run_folder import RunFolder, holder
from supervisor.controller.steps_file import StepLine, read_steps
from supervisor.core.accounting import Ledger
from supervisor.core.api import CodecError, Policy, RunState, advance, decode, encode, events

REQUEST_S = 35.0


def replayed(folder: RunFolder) -> tuple[RunState | None, Ledger]:
    """State and accounts as the journal leaves them; raises ControllerError for a damaged journal."""
    state: RunState | None = None
    policy, ledger = Policy(), Ledger()
    for record in read_journal(folder.journal):
        policy = record.policy or policy
        if record.event is not None:
            before = state
            state, made = advance(before, record.event, policy)
            ledger.observe(before, record.event, state, made)
    return state, ledger


def records(folder: Path) -> tuple[JournalRecord, ...]:
    """The run's journal; raises ControllerError."""
    return tuple(read_journal(RunFolder(folder).journal))


def step_rows(folder: Path) -> Iterator[StepLine]:
    """Loss and throughput of the run's steps, oldest first."""
    return read_steps(RunFolder(folder).steps)


def view(folder: Path) -> RunView:
    """Where the run stands, from its living controller, else from the journal; raises ControllerError."""
    run_folder = RunFolder(folder)
    if holder(run_folder) != "none":
        try:
            return decode(RunView, _request(folder, "GET", "/v1/view"))
        except (LinkError, CodecError):
            pass  # It may just be ending: the journal knows as much.
    state, ledger = replayed(run_folder)
    if state is None:
        raise ControllerError(f"{folder} holds no run: its journal is empty; start one with `supervisor run`")
    at = time.time()
    account = ledger.account(at)
    return RunView(
        at=at,
        state=state,
        numbers=LiveNumbers(),
        ettr=account.ettr,
        mttr_s=account.mttr_s,
        incidents=len(account.incidents),
        interventions=account.interventions,
        controller=holder(run_folder),
        folder=str(folder),
    )


def give_order(folder: Path, order: events.OrderGiven) -> list[str]:
    """Hand a person's order to the run's controller; what it answers, a line each. Raises ControllerError."""
    if holder(RunFolder(folder)) == "none":
        state, _ = replayed(RunFolder(folder))
        if state is not None and state.is_final:
            outcome = "" if state.outcome is None else f": {state.outcome.text}"
            raise ControllerError(f"run {folder.name} is over, so there is nothing to {order.order.value}{outcome}")
        raise ControllerError(
            f"nobody supervises {folder.name} now, so nobody can {order.order.value} it; "
            "start `supervisor run` with the same name and command, which takes over what is running"
        )
    try:
        answer = _request(folder, "POST", "/v1/person", encode(order))
    except LinkError as error:
        raise ControllerError(f"the controller of {folder.name} does not answer: {error}; try again") from None
    return [str(line) for line in answer.get("answer", [])]


def correct(folder: Path, order: events.OrderGiven) -> list[str]:
    """Keep a person's correction of an incident, and tell a living controller of it. Raises ControllerError."""
    run_folder = RunFolder(folder)
    try:
        incident_files.keep_correction(run_folder.incident(order.incident or 0), order)
    except OSError as error:
        raise ControllerError(f"the correction cannot be kept in {folder}: {error.strerror}; free space") from None
    if holder(run_folder) == "none":
        return [f"incident {order.incident} is recorded as {order.reason}"]
    return give_order(folder, order)


def nodes_held(folder: Path) -> dict[str, str]:
    """Node to reason, of the nodes that are kept out of the run's attempts; raises SchedulerError."""
    return open_scheduler(_scheduler_of(folder), RunFolder(folder).scheduler).cordoned()


def uncordon(folder: Path, node: str) -> None:
    """Raises ControllerError when the node is not held, SchedulerError when the scheduler refuses."""
    held = nodes_held(folder)
    if node not in held:
        known = ", ".join(sorted(held)) or "none"
        raise ControllerError(f"node {node} is not held by run {folder.name}; held nodes: {known}")
    open_scheduler(_scheduler_of(folder), RunFolder(folder).scheduler).uncordon(node)


def _scheduler_of(folder: Path) -> str:
    return str(RunFolder(folder).read_description().get("scheduler", "local"))


def _request(folder: Path, method: str, path: str, body: object = None) -> dict[str, Any]:
    session = Session(folder, REQUEST_S)
    try:
        answer = session.request(method, path, body)
    finally:
        session.close()
    if not isinstance(answer, dict):
        raise LinkError(f"an object was expected, not {answer!r}"[:200])
    return answer
