# SPDX-License-Identifier: Apache-2.0
"""Who this process is in its launch: rank, world size, attempt, and a token that only this launch's ranks share.

Rank 0 settles attempt and fence once; the others learn them from the process group, or, without one, from the
environment that their launcher gave to all of them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch.distributed as dist

from checkpoint.api import CheckpointError, CheckpointRef, Fence, StaleAttemptError, Store, StoreError
from checkpoint.catalogue import Catalogue
from checkpoint.lineage import advanced_fence, parse_resume
from checkpoint.manifest import decode_fence, load_fence

_LEARN_DEADLINE_S = 120.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Orders:
    """What the supervisor said in the environment.

    `attempt` is None when there is no supervisor. `resume` is meaningful when `names_resume`; None then means to start
    from nothing.
    """

    attempt: int | None
    names_resume: bool
    resume: CheckpointRef | None
    fence_file: str | None
    events: str | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Orders:
        """Read `CHECKPOINT_ATTEMPT`, `CHECKPOINT_RESUME`, `CHECKPOINT_FENCE` and `CHECKPOINT_EVENTS`.

        Raises:
            CheckpointError: one of them cannot be read.
        """
        attempt = environment.get("CHECKPOINT_ATTEMPT")
        resume = environment.get("CHECKPOINT_RESUME")
        if attempt is not None and not attempt.isdecimal():
            raise CheckpointError(f"CHECKPOINT_ATTEMPT={attempt!r} is not a number; the supervisor sets it: unset it")
        try:
            ref = parse_resume(resume) if resume is not None else None
        except ValueError as error:
            raise CheckpointError(f"CHECKPOINT_RESUME: {error}") from error
        return cls(
            attempt=None if attempt is None else int(attempt),
            names_resume=resume is not None,
            resume=ref,
            fence_file=environment.get("CHECKPOINT_FENCE"),
            events=environment.get("CHECKPOINT_EVENTS"),
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """This process within its launch."""

    rank: int
    world_size: int
    attempt: int
    token: str


def settle(catalogue: Catalogue, orders: Orders, environment: Mapping[str, str]) -> Identity:
    """Find out who we are; on rank 0 also move the fence to our attempt. Collective when there is a process group.

    Raises:
        StaleAttemptError: the fence names a newer attempt than ours.
        CheckpointError: the store cannot be used, or the ranks have no way to agree.
    """
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        return _settle_in_group(catalogue, orders, rank, world_size)
    rank, world_size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    token = uuid.uuid4().hex if world_size == 1 else _launch_token(orders, environment)
    if rank == 0:
        return Identity(0, world_size, open_fence(catalogue, orders, token), token)
    if orders.attempt is not None:
        _demand_current(catalogue.read_fence(), orders.attempt)
        return Identity(rank, world_size, orders.attempt, token)
    return Identity(rank, world_size, _learn_attempt(catalogue, token), token)


def rank_of(environment: Mapping[str, str]) -> int:
    """The rank as the process group, or else the environment, has it."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(environment.get("RANK", "0"))


def open_fence(catalogue: Catalogue, orders: Orders, token: str) -> int:
    """Move the fence to this launch's attempt, sealing what is visible up to its resume point; returns the attempt.

    Under a supervisor the fence is moved only if it is behind, since the supervisor normally wrote it.
    """
    fence = catalogue.read_fence()
    if orders.attempt is not None:
        _demand_current(fence, orders.attempt)
        if fence is not None and fence.attempt == orders.attempt:
            return orders.attempt
    attempt = orders.attempt if orders.attempt is not None else catalogue.newest_attempt() + 1
    visible = catalogue.visible_refs()
    if not visible and not (orders.names_resume and orders.resume is None):
        _demand_own(catalogue)
    resume = orders.resume if orders.names_resume else max(visible, default=None)
    catalogue.write_fence(
        advanced_fence(
            attempt,
            resume=resume,
            visible=visible,
            controller=f"library:{token}",
            unhealthy=fence.unhealthy if fence else (),
        )
    )
    return attempt


def _demand_own(catalogue: Catalogue) -> None:
    """Training from nothing beside another program's checkpoints is hardly what was meant."""
    found = catalogue.foreign().best()
    if found is not None:
        raise CheckpointError(
            f"{catalogue.location} holds checkpoints of {found.format.value} (the newest whole one is {found.folder}), "
            "which this library does not restore: give it a folder of its own, or set CHECKPOINT_RESUME=none to start "
            "from nothing here"
        )


def fence_guard(store: Store, attempt: int, fence_file: str | None) -> Callable[[], None]:
    """A check that raises StaleAttemptError once the store's fence, or the other one, names a newer attempt."""

    def demand_current() -> None:
        _demand_current(load_fence(store), attempt)
        if fence_file is not None:
            _demand_current(_read_fence_file(fence_file), attempt)

    return demand_current


def _demand_current(fence: Fence | None, attempt: int) -> None:
    if fence is not None and fence.attempt > attempt:
        raise StaleAttemptError(
            f"this process belongs to attempt {attempt}, but the fence names attempt {fence.attempt}, which has taken "
            "over: stop this process; nothing that it saves counts any more"
        )


def _read_fence_file(path: str) -> Fence | None:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - a name from the environment, kept as it came
            return decode_fence(stream.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"CHECKPOINT_FENCE={path} cannot be read: {error}") from error


def _settle_in_group(catalogue: Catalogue, orders: Orders, rank: int, world_size: int) -> Identity:
    """Rank 0 settles and tells; its error is told too, so that no rank waits for the group's time-out."""
    told: list[object] = [None, "", None]
    if rank == 0:
        token = uuid.uuid4().hex
        try:
            told = [open_fence(catalogue, orders, token), token, None]
        except (CheckpointError, OSError) as error:
            told = [None, token, error]
    dist.broadcast_object_list(told, src=0)
    attempt, token_told, error_told = told
    if isinstance(error_told, Exception):
        raise error_told
    if not isinstance(attempt, int):
        raise CheckpointError(f"rank 0 told attempt {attempt!r}; all ranks must run the same version of this library")
    return Identity(rank, world_size, attempt, str(token_told))


def _launch_token(orders: Orders, environment: Mapping[str, str]) -> str:
    """What all ranks of this launch, and no other launch, have in their environment."""
    parts = [environment.get(n, "") for n in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")]
    if not parts[0] and orders.attempt is None:
        raise CheckpointError(
            f"{environment.get('WORLD_SIZE')} ranks have neither a process group nor torchrun's environment to agree "
            "by: make the Checkpointer after init_process_group, or set CHECKPOINT_ATTEMPT"
        )
    if environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE"):
        parts.append(str(os.getppid()))
    return ":".join(parts)


def _learn_attempt(catalogue: Catalogue, token: str) -> int:
    ends = time.monotonic() + _LEARN_DEADLINE_S
    while True:
        fence = catalogue.read_fence()
        if fence is not None and fence.controller == f"library:{token}":
            return fence.attempt
        if time.monotonic() >= ends:
            raise CheckpointError(
                f"rank 0 did not write the fence in {catalogue.location} within {_LEARN_DEADLINE_S:g} s: "
                "see its log, and check that all ranks see the same folder"
            )
        time.sleep(_POLL_S)
