# SPDX-License-Identifier: Apache-2.0
"""Going back over a loss spike: replay first, leave the batches out when it comes back at the same place.

A spike that returns at the same batches after a plain replay is the data's; one that does not was chance (hardware
or numerics). PaLM found the same batches harmless from another checkpoint (arXiv 2204.02311, section 5.1), so a replay
decides.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.core.decisions import Launch, Notify
from supervisor.core.policy import Policy
from supervisor.core.state import RunState
from supervisor.core.transitions import describe_resume, newest, note, rolled_back, warning
from supervisor.core.values import BatchRange, Checkpoint, Failure, SpikeCase


def is_same_place(case: SpikeCase, onset_position: int, policy: Policy) -> bool:
    """Near the onset that was replayed, or right behind the batches that were left out for it."""
    if abs(onset_position - case.onset_position) <= policy.same_place_batches:
        return True
    return case.skipped is not None and 0 <= onset_position - case.skipped.last <= policy.same_place_batches


def rollback_launch(state: RunState, policy: Policy) -> tuple[Launch, Notify]:
    """The attempt that goes back before the failure of `state`, and what a person is told of it."""
    failure, launch = state.failure, state.relaunch
    assert failure is not None and launch is not None
    onset = failure.onset_position
    if onset is None:
        return _older_checkpoint(state, launch)
    resume = clean_checkpoint(state.checkpoints, failure, policy)
    back = replace(launch, resume=resume, from_nothing=resume is None)
    skip = skip_range(state, onset, policy)
    if skip is None:
        text = f"going back to {describe_resume(back)} and replaying the batches, to tell data from chance"
        return back, warning(text, state.incident)
    back = replace(back, skipped=merge((*state.skipped, skip)))
    again = state.spike is not None and is_same_place(state.spike, onset, policy)
    cause = "the spike came back at the same batches, so it is the data's" if again else "policy skips at once"
    text = f"{cause}: going back to {describe_resume(back)} and leaving out batches {skip.first}-{skip.last}"
    return back, warning(text, state.incident)


def skip_range(state: RunState, onset: int, policy: Policy) -> BatchRange | None:
    """The batches to leave out from the spike's onset on; None for a plain replay."""
    returned = state.spike is not None and is_same_place(state.spike, onset, policy)
    if returned or policy.skip_first:
        return BatchRange(onset, onset + policy.skip_batches - 1)
    return None


def clean_checkpoint(checkpoints: tuple[Checkpoint, ...], failure: Failure, policy: Policy) -> Checkpoint | None:
    """The newest one older than the onset by the margin; where none is so old, the oldest one before the onset.

    None means to start from nothing.
    """
    assert failure.step is not None
    before = newest(checkpoints, step=failure.step - max(1, policy.rollback_margin_steps))
    if before is not None:
        return before
    young = [c for c in checkpoints if c.step < failure.step and c.healthy is not False]
    return min(young, key=lambda c: (c.step, -c.attempt), default=None)


def _older_checkpoint(state: RunState, launch: Launch) -> tuple[Launch, Notify]:
    """Without an onset (a damaged checkpoint, a NaN that the script itself noticed): one older than the newest."""
    suspect = newest(state.checkpoints)
    older = None if suspect is None else newest(state.checkpoints, step=suspect.step - 1)
    back = replace(launch, resume=older, from_nothing=older is None)
    return back, warning(f"going back to {describe_resume(back)}", state.incident)


def remember_rollback(state: RunState, policy: Policy, launch: Launch) -> RunState:
    """The state once `launch` is what comes next, whether it is launched at once or waits for a person."""
    failure = state.failure
    assert failure is not None
    case = state.spike
    if failure.onset_position is not None:
        skip = skip_range(state, failure.onset_position, policy)
        last = failure.onset_position if failure.last_position is None else failure.last_position
        case = SpikeCase(failure.onset_position, last, skip)
    return replace(
        rolled_back(state, launch),
        rollbacks=state.rollbacks + 1,
        spike=case,
        skipped=launch.skipped,
        relaunch=launch,
    )


def settle_spike(state: RunState, policy: Policy) -> tuple[RunState, tuple[Notify, ...]]:
    """Close the case once training has passed the place where the loss spiked."""
    case, position = state.spike, state.position
    if case is None or position is None:
        return state, ()
    end = case.last_position if case.skipped is None else case.skipped.last
    if position <= end + policy.same_place_batches:
        return state, ()
    if case.skipped is None:
        text = (
            f"the spike at batch {case.onset_position} did not come back, so it was not the data's (hardware or chance)"
        )
    else:
        text = f"the loss is clean behind the skipped batches {case.skipped.first}-{case.skipped.last}"
    return replace(state, spike=None), (note(text, state.incident),)


def merge(ranges: tuple[BatchRange, ...]) -> tuple[BatchRange, ...]:
    """Sorted and without overlap; neighbours are joined."""
    merged: list[BatchRange] = []
    for span in sorted(ranges):
        if merged and span.first <= merged[-1].last + 1:
            merged[-1] = BatchRange(merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return tuple(merged)
