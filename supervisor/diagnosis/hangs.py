# SPDX-License-Identifier: Apache-2.0
"""Why a run makes no step: which rank the others wait for, and where it stands.

The order of trust: a process that is stopped or gone; ranks that call different collectives; the rank that did not
join a collective; a rank of which nothing could be had; what the detector saw; a stack unlike the others. The many
ranks that wait in a collective are never the suspects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor.diagnosis import flight_recorder
from supervisor.diagnosis.hang_evidence import RankEvidence
from supervisor.diagnosis.model import Action, Hang

_MOST_NAMED = 8
_WAITS_FOR_PEERS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|all_?to_?all|wait_tensor|_sync_params|"
    r"(?:^|\s)synchronize|ncclGroupEnd|loss\.item|\bitem \(|run_backward",
    re.IGNORECASE | re.MULTILINE,
)
_STORAGE_CHANNEL = re.compile(r"nfs|rpc_wait|lustre|ptlrpc|cl_sync|fuse|ceph|gpfs|jbd2|io_schedule|blk_|folio_wait")
_RESTART = "Restart; what was kept of all ranks lies with the incident. When the same rank hangs again, test its node."


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    pattern: re.Pattern[str]
    reason: str
    action: Action
    words: str


_PLACES = (
    _Place(
        "dataloader",
        re.compile(r"_try_get_data|_next_data|_get_data|multiprocessing/queues|worker_loop|dataloader\.py"),
        "DataloaderKilled",
        Action.RESTART_SAME,
        "It waits for its dataloader's worker, which does not answer.",
    ),
    _Place(
        "storage",
        re.compile(r"fsync|torch\.save|torch/serialization|_write_item|safetensors|\bwrite \(|filesystem\.py"),
        "S3StorageError",
        Action.WAIT_AND_RETRY,
        "It waits for the storage.",
    ),
    _Place(
        "tracker",
        re.compile(r"wandb|mlflow|neptune|requests/|urllib3/|huggingface_hub"),
        "ConnectionError",
        Action.WAIT_AND_RETRY,
        "It waits for an outside service.",
    ),
)


@dataclass(frozen=True, slots=True)
class HangReading:
    """The reading of a hang: `name` follows `signature:` in `decided_by`; `ranks` are those that hold the others up."""

    name: str
    reason: str
    action: Action
    ranks: tuple[int, ...]
    confidence: float
    explanation: str
    suggestion: str = _RESTART
    proofs: tuple[tuple[str, str], ...] = ()
    """File of the incident's folder, and what in it proves the reading."""

    @property
    def may_be_the_node(self) -> bool:
        """False where a person or another program did it, so that a test of the node is of no use."""
        return self.action is not Action.FIX_USER and self.reason != "ExternalStop"

    @property
    def rank(self) -> int | None:
        """The culprit, where there is exactly one."""
        return self.ranks[0] if len(self.ranks) == 1 else None


def read_hang(hang: Hang, world_size: int | None = None) -> HangReading:
    """The strongest evidence decides; without any, it is a silent hang of nobody in particular."""
    seen = hang.ranks
    step = "before its first step" if hang.step is None else f"after step {hang.step}"
    opening = f"No step for {hang.silent_s:.0f} s {step}, and no error."
    records = {rank: each.record for rank, each in seen.items() if each.record is not None}
    return (
        _by_stopped(opening, seen)
        or _by_mismatch(opening, records)
        or _by_absence(opening, seen, records)
        or _by_missing(opening, seen, records, world_size)
        or _by_uninterruptible(opening, seen)
        or _by_detector(opening, seen, hang.culprit)
        or _by_stack(opening, seen)
        or HangReading("hang", "SilentHang", Action.RESTART_SAME, (), 0.5, opening)
    )


def _by_stopped(opening: str, seen: Mapping[int, RankEvidence]) -> HangReading | None:
    stopped = [rank for rank, each in seen.items() if each.is_stopped]
    gone = [rank for rank, each in seen.items() if each.is_gone]
    if stopped:
        how = "stopped (SIGSTOP, a debugger or a suspended container); the others wait"
        text = f"{opening} {_named(stopped, 'is', 'are')} {how}."
        advice = "Restart; find out who or what stopped the process. No node is to blame."
        proofs = tuple((f"process-rank-{rank}.txt", f"State: {seen[rank].state} (stopped)") for rank in stopped)
        return HangReading(
            "hang_of_stopped_rank", "ExternalStop", Action.RESTART_SAME, tuple(stopped), 0.9, text, advice, proofs
        )
    if gone and len(gone) < len(seen):
        text = f"{opening} {_named(gone, 'is', 'are')} gone, and nobody told the others, which wait."
        proofs = tuple((f"process-rank-{rank}.txt", "the process had ended") for rank in gone)
        return HangReading("hang_after_exit", "SilentHang", Action.RESTART_SAME, tuple(gone), 0.8, text, proofs=proofs)
    return None


def _by_mismatch(opening: str, records: Mapping[int, flight_recorder.Record]) -> HangReading | None:
    found = flight_recorder.mismatch(records)
    if found is None:
        return None
    odd = found.odd_rank
    who = "Ranks call different collectives" if odd is None else f"Rank {odd} calls another collective than the rest"
    return HangReading(
        "collective_mismatch",
        "RuntimeError",
        Action.FIX_USER,
        () if odd is None else (odd,),
        0.8,
        f"{opening} {who} under one number, so they run different code: {found}.",
        "Look at code that depends on the rank or on its data; TORCH_DISTRIBUTED_DEBUG=DETAIL names the calls.",
        tuple((f"flight-recorder-rank-{rank}.json", str(call)) for rank, call in sorted(found.calls.items())),
    )


def _by_absence(
    opening: str, seen: Mapping[int, RankEvidence], records: Mapping[int, flight_recorder.Record]
) -> HangReading | None:
    found = flight_recorder.absence(records)
    if found is None:
        return None
    text = (
        f"{opening} {_named(found.ranks, 'has', 'have')} not joined the collective in which the others wait: {found}."
    )
    proofs = tuple((f"flight-recorder-rank-{rank}.json", str(found)) for rank in found.ranks)
    return _placed(
        HangReading("hang_of_absent_rank", "SilentHang", Action.RESTART_SAME, found.ranks, 0.8, text, proofs=proofs),
        seen,
    )


def _by_missing(
    opening: str,
    seen: Mapping[int, RankEvidence],
    records: Mapping[int, flight_recorder.Record],
    world_size: int | None,
) -> HangReading | None:
    """A rank of which nothing could be had, or the only one whose recorder did not answer."""
    missing = tuple(rank for rank in range(world_size or 0) if rank not in seen)
    if seen and missing:
        text = f"{opening} {_named(missing, 'gave', 'gave')} no evidence at all: the process or its node may be gone."
        return HangReading("hang_of_missing_rank", "SilentHang", Action.RESTART_SAME, missing, 0.6, text)
    mute = tuple(rank for rank in seen if rank not in records)
    if len(mute) == 1 and len(records) > 1:
        text = f"{opening} The flight recorder of rank {mute[0]} did not answer, those of the others did."
        return _placed(HangReading("hang_of_mute_rank", "SilentHang", Action.RESTART_SAME, mute, 0.6, text), seen)
    return None


def _by_uninterruptible(opening: str, seen: Mapping[int, RankEvidence]) -> HangReading | None:
    asleep = [rank for rank, each in seen.items() if each.is_uninterruptible]
    if len(asleep) != 1 or len(seen) < 2:
        return None
    rank = asleep[0]
    channel = seen[rank].sleeps_in
    text = f"{opening} Rank {rank} is in uninterruptible sleep ({channel or 'unknown'}): its device or storage hangs."
    is_storage = _STORAGE_CHANNEL.search(channel) is not None
    proof = (f"process-rank-{rank}.txt", f"State: D, sleeping in {channel or '?'}")
    return HangReading(
        "hang_in_kernel",
        "S3StorageError" if is_storage else "SilentHang",
        Action.WAIT_AND_RETRY if is_storage else Action.RESTART_SAME,
        (rank,),
        0.7,
        text,
        proofs=(proof,),
    )


def _by_detector(opening: str, seen: Mapping[int, RankEvidence], culprit: int | None) -> HangReading | None:
    if culprit is None:
        return None
    text = f"{opening} Rank {culprit} was the one that stood out: behind the others or overdue in a pause."
    return _placed(HangReading("hang_of_late_rank", "SilentHang", Action.RESTART_SAME, (culprit,), 0.6, text), seen)


def _by_stack(opening: str, seen: Mapping[int, RankEvidence]) -> HangReading | None:
    stacks = {rank: each.stack for rank, each in seen.items() if each.stack}
    waiting = [rank for rank, stack in stacks.items() if _WAITS_FOR_PEERS.search(stack)]
    odd = [rank for rank in stacks if rank not in waiting]
    if len(odd) != 1 or (len(stacks) > 1 and not waiting):
        return None
    where = "is not in the collective in which the others wait" if waiting else "hangs"
    text = f"{opening} Rank {odd[0]} {where}."
    return _placed(HangReading("hang_of_one_rank", "SilentHang", Action.RESTART_SAME, tuple(odd), 0.6, text), seen)


def _placed(reading: HangReading, seen: Mapping[int, RankEvidence]) -> HangReading:
    """The reading with the place at which its one rank stands, as far as the stack tells."""
    rank = reading.rank
    stack = seen[rank].stack if rank is not None and rank in seen else ""
    if rank is None or not stack:
        return reading
    proofs = (*reading.proofs, (f"stacks-rank-{rank}.txt", _innermost(stack)))
    found = next((place for place in _PLACES if place.pattern.search(stack)), None)
    if found is None:
        text = f"{reading.explanation} It stands in {_innermost(stack)}."
        return _with(reading, reading.name, reading.reason, reading.action, text, proofs)
    text = f"{reading.explanation} {found.words}"
    return _with(reading, f"hang_in_{found.name}", found.reason, found.action, text, proofs)


def _with(
    reading: HangReading, name: str, reason: str, action: Action, text: str, proofs: tuple[tuple[str, str], ...]
) -> HangReading:
    return HangReading(name, reason, action, reading.ranks, reading.confidence, text, reading.suggestion, proofs)


def _innermost(stack: str) -> str:
    """The innermost frame, as the dump writes it; its first line is the thread's name."""
    frames = [line.strip() for line in stack.splitlines()[1:] if line.strip()]
    return frames[0] if frames else stack.strip()


def _named(ranks: Iterable[int], one: str, many: str) -> str:
    listed = list(ranks)
    shown = ", ".join(map(str, listed[:_MOST_NAMED]))
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return f"Rank {shown} {one}" if len(listed) == 1 else f"Ranks {shown}{more} {many}"
