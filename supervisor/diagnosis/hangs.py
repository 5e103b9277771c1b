# SPDX-License-Identifier: Apache-2.0
"""What the stacks of a run without steps say: who waits in a collective, and who does not.

The rank that waits elsewhere than the others is the suspect, never the many that wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.diagnosis.model import Action, Hang

_WAITS_FOR_PEERS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|all_?to_?all|wait_tensor|_sync_params|"
    r"(?:^|\s)synchronize|ncclGroupEnd|loss\.item|\bitem \(|run_backward",
    re.IGNORECASE | re.MULTILINE,
)
_PLACES: tuple[tuple[str, re.Pattern[str], str, Action, str], ...] = (
    (
        "dataloader",
        re.compile(r"_try_get_data|_next_data|_get_data|multiprocessing/queues|worker_loop|dataloader\.py"),
        "DataloaderKilled",
        Action.RESTART_SAME,
        "waits for its dataloader's worker, which does not answer",
    ),
    (
        "storage",
        re.compile(r"fsync|torch\.save|torch/serialization|_write_item|safetensors|\bwrite \(|filesystem\.py"),
        "S3StorageError",
        Action.WAIT_AND_RETRY,
        "waits for the storage",
    ),
    (
        "tracker",
        re.compile(r"wandb|mlflow|neptune|requests/|urllib3/|huggingface_hub"),
        "ConnectionError",
        Action.WAIT_AND_RETRY,
        "waits for an outside service",
    ),
)


@dataclass(frozen=True, slots=True)
class HangReading:
    """The reading of a hang: `name` follows `signature:` in `decided_by`."""

    name: str
    reason: str
    action: Action
    rank: int | None
    explanation: str


def read_hang(hang: Hang) -> HangReading:
    """Name the rank that does not wait for the others, and where it stands, when the stacks say it."""
    step = "before its first step" if hang.step is None else f"after step {hang.step}"
    opening = f"No step for {hang.silent_s:.0f} s {step}, and no error."
    suspects = _suspects(hang.stacks)
    if len(suspects) != 1:
        return HangReading("hang", "SilentHang", Action.RESTART_SAME, None, opening)
    rank = suspects[0]
    stack = hang.stacks[rank]
    for name, pattern, reason, action, words in _PLACES:
        if pattern.search(stack):
            text = f"{opening} Rank {rank} {words}; the others wait for it in a collective."
            return HangReading(f"hang_in_{name}", reason, action, rank, text)
    text = f"{opening} Rank {rank} is not in the collective in which the others wait."
    return HangReading("hang_of_one_rank", "SilentHang", Action.RESTART_SAME, rank, text)


def _suspects(stacks: Mapping[int, str]) -> list[int]:
    if len(stacks) < 2:
        return list(stacks)
    waiting = {rank for rank, stack in stacks.items() if _WAITS_FOR_PEERS.search(stack)}
    silent = [rank for rank in stacks if rank not in waiting]
    return silent if waiting and len(silent) < len(stacks) else []
