# SPDX-License-Identifier: Apache-2.0
"""Which batch a step trains on, once ranges of batches are skipped.

Batches are numbered 0, 1, 2, ... (position), steps 1, 2, 3, ...; step `s` trains on the s-th position that is not
skipped. A range that is ordered later may begin before a checkpoint's position. Batches before that position were
trained on and stay so: the range counts from the position on. Otherwise the restored step would map to another
position, and batches would be trained twice or lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

Range = tuple[int, int]
"""First and last position of a skipped range, both included."""


def merged(ranges: Iterable[Sequence[int]]) -> tuple[Range, ...]:
    """Return the ranges sorted, with overlapping and adjacent ones joined.

    Raises:
        ValueError: a range is not two integers, is negative, or ends before it begins.
    """
    result: list[Range] = []
    for first, last in sorted(_checked(each) for each in ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return tuple(result)


def parsed(text: str) -> tuple[Range, ...]:
    """Return the ranges of JSON such as `[[200, 399], [1000, 1199]]`; empty text is no range.

    Raises:
        ValueError: the text is not such a list.
    """
    if not text.strip():
        return ()
    ranges = json.loads(text)
    return merged(ranges if isinstance(ranges, list) else [ranges])


def position_of_step(step: int, skipped: Sequence[Range]) -> int:
    """Return the position that step `step` (1, 2, ...) trains on; `skipped` is as `merged` returns it."""
    if step < 1:
        raise ValueError(f"steps are numbered from 1, not {step}")
    position = step - 1
    for first, last in skipped:
        if first > position:
            break
        position += last - first + 1
    return position


def steps_before(position: int, skipped: Sequence[Range]) -> int:
    """Return the number of steps done when all positions below `position` are trained on or skipped."""
    return position - sum(min(last + 1, position) - first for first, last in skipped if first < position)


def joined(remembered: Iterable[Sequence[int]], ordered: Iterable[Sequence[int]], position: int) -> tuple[Range, ...]:
    """Return what is skipped after a restore at `position`.

    Ranges remembered by the checkpoint stay whole, because training up to `position` obeyed them. Ordered ranges count
    from `position` on.
    """
    ahead = ((max(first, position), last) for first, last in merged(ordered) if last >= position)
    return merged([*remembered, *ahead])


class DataPosition:
    """Where the run stands in its data; belongs in the checkpointed state, as `state["data"]`.

    The state holds the next position and the ranges in force, so a restored run goes on with exactly the next batch
    and never forgets a range that the supervisor ordered in an earlier attempt.
    """

    __slots__ = ("_is_restored", "_next", "_ordered", "_skipped")

    def __init__(self, ordered: Iterable[Sequence[int]] = ()) -> None:
        self._ordered = merged(ordered)
        self._skipped = self._ordered
        self._next = position_of_step(1, self._skipped)
        self._is_restored = False

    @property
    def position(self) -> int:
        """Index of the batch that the step after the current one trains on."""
        return self._next

    @property
    def skipped(self) -> tuple[Range, ...]:
        """The ranges in force, sorted, apart from each other, both ends included."""
        return self._skipped

    def state_dict(self) -> dict[str, int | str]:
        """Return `position` (int) and `skipped` (JSON text).

        Text, because checkpoint formats that flatten lists into keys could not load a list of another length.
        """
        return {"position": self._next, "skipped": json.dumps(self._skipped)}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Take over a checkpoint's position and ranges, joined with the ranges ordered for this attempt.

        Raises:
            ValueError: the state is not one that `state_dict` returned.
        """
        try:
            position, remembered = int(state["position"]), parsed(str(state["skipped"]))
        except KeyError as error:
            raise ValueError(f"the checkpoint's data position lacks {error}; it holds {sorted(state)}") from error
        self._skipped = joined(remembered, self._ordered, position)
        self._next = position_of_step(steps_before(position, self._skipped) + 1, self._skipped)
        self._is_restored = True

    def begin(self, start: int) -> None:
        """Stand after step `start`.

        Raises:
            ValueError: `start` is negative, or is not the step at which the restored state was saved.
        """
        if start < 0:
            raise ValueError(f"start is the number of steps done, so it cannot be {start}")
        if self._is_restored and (known := steps_before(self._next, self._skipped)) != start:
            raise ValueError(
                f"batches(start={start}) does not fit the restored data position {self._next}, which belongs to step "
                f"{known}; pass the step that restore() returned, and save the state after the step that it names"
            )
        self.advance(start)

    def advance(self, step: int) -> None:
        """Stand after step `step`."""
        self._next = position_of_step(step + 1, self._skipped)

    def ahead(self) -> Iterator[int]:
        """Yield the positions from here on, skipped ones left out, without end."""
        done = steps_before(self._next, self._skipped)
        while True:
            done += 1
            yield position_of_step(done, self._skipped)


def _checked(each: Sequence[int]) -> Range:
    if not isinstance(each, (list, tuple)) or len(each) != 2 or not all(type(end) is int for end in each):
        raise ValueError(f"a skipped range is a pair [first, last] of integers, not {each!r}")
    first, last = each
    if not 0 <= first <= last:
        raise ValueError(f"skipped range [{first}, {last}] must have 0 <= first <= last")
    return first, last
