# SPDX-License-Identifier: Apache-2.0
"""What is still there of an attempt when its ranks are gone, and how they ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from supervisor.agent import launch, processes
from supervisor.agent.api import RankExit
from supervisor.agent.processes import ProcessId
from supervisor.agent.record import AttemptRecord


def living(record: AttemptRecord, ranks: Iterable[ProcessId]) -> list[ProcessId]:
    """The launcher and all that it and the ranks have left behind; not the wrapper, which ends by itself.

    Looks at every process of the node. Nothing of a launch that is only watched is ours, so there it is empty.
    """
    if record.attached:
        return []
    leaders = [*ranks, *([record.wrapper] if record.wrapper is not None else [])]
    everything = processes.all_stats()
    found = {*processes.in_sessions_of(leaders, everything)}
    found.update(processes.carrying("SUPERVISOR_RANK_FOLDER", record.rank_folder, everything))
    found.discard(record.wrapper or ProcessId(0, 0))
    return sorted(found, key=lambda each: each.pid)


def exits(record: AttemptRecord, launcher_code: int | None, *, is_torchrun: bool) -> tuple[RankExit, ...]:
    """Of all ranks, with the codes that could not be read in time from torchrun's list or the wrapper's file."""
    found = launch.with_codes(record.exits, launch.output_files(record.spec)[1])
    launcher = record.launcher
    if is_torchrun or launcher is None:
        return found
    if not found:
        found = (RankExit(0, 0, launcher.pid, None, time.time(), by_us=record.ordered_to_end),)
    # The wrapper waits for a command that is its own rank before we can read its code, but keeps it.
    return tuple(replace(each, exit_code=launcher_code) if each.pid == launcher.pid else each for each in found)


def stuck_notes(stuck: Iterable[ProcessId]) -> tuple[str, ...]:
    """Lines for a person about processes that do not die."""
    return tuple(
        f"process {each.pid} does not die of SIGKILL (state {found.state}, in "
        f"{processes.wait_channel(each.pid) or '?'}): its device or file system hangs; the node has to be restarted"
        for each in stuck
        if (found := processes.stat_of(each)) is not None
    )
