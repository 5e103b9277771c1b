# SPDX-License-Identifier: Apache-2.0
"""Anything may be killed at any moment, again and again: `make soak`."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.system.supervised import Supervised
from tests.system.test_same_curve import digest, training, undisturbed

__all__ = ["training", "undisturbed"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

KILLS = 12
GENEROUS = """
[policy]
same_failure_limit = 100
backoff_s = 0.1

[policy.budgets.infrastructure]
count = 1000
window_s = 3600

[policy.budgets.other]
count = 1000
window_s = 3600
"""


@contextmanager
def watched_for_two_attempts(run: Supervised) -> Iterator[list[set[int]]]:
    """Look all the while; what is collected are the moments at which ranks of two attempts lived."""
    seen: list[set[int]] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            attempts = {each.attempt for each in run.ranks()}
            if len(attempts) > 1:
                seen.append(attempts)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("seed", range(6))
def test_weights_are_the_same_whatever_is_killed_and_two_attempts_never_live_at_once(
    seed: int, supervised: Supervised, training: tuple[str, ...], undisturbed: str
) -> None:
    chance = random.Random(seed)
    supervised.configure(GENEROUS)
    supervised.start(*training)
    with watched_for_two_attempts(supervised) as doubled:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.0, 4.0))
            if not supervised.is_running:
                break
            what = chance.choice(["rank", "rank", "frozen rank", "agent", "supervisor", "supervisor and rank"])
            if "supervisor" in what:
                supervised.kill()
            victims = [each.pid for each in supervised.ranks()] if "rank" in what else []
            victims += supervised.agents() if what == "agent" else []
            if victims:
                hit = signal.SIGSTOP if "frozen" in what else signal.SIGKILL
                with _gone_is_fine():
                    os.kill(chance.choice(victims), hit)
            if "supervisor" in what:
                supervised.start(*training)
        assert supervised.end() == 0, supervised.output
    assert digest(supervised) == undisturbed
    assert doubled == []
    attempts = [launch.attempt for launch in supervised.launches()]
    assert attempts == sorted(set(attempts))


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        return
