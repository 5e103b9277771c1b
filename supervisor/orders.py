# SPDX-License-Identifier: Apache-2.0
"""From the words of the command line to a person's order."""

from __future__ import annotations

import argparse
import difflib
import getpass
import os
import re
import socket
import time

from supervisor.core.api import BatchRange, OrderKind
from supervisor.core.events import OrderGiven
from supervisor.errors import UsageError

_SPAN = re.compile(r"(\d+)-(\d+)")


def order_from(arguments: argparse.Namespace) -> OrderGiven:
    """Raises UsageError."""
    span = batch_range(arguments.span) if arguments.subcommand == "skip" else None
    step = getattr(arguments, "to", None)
    if step is not None and step < 0:
        raise UsageError(f"rollback --to {step}: a step is 0 or more")
    return OrderGiven(
        at=time.time(),
        order=OrderKind(arguments.subcommand),
        who=who(),
        why=arguments.why,
        step=step,
        first=None if span is None else span.first,
        last=None if span is None else span.last,
        node=getattr(arguments, "node", None),
    )


def correction(arguments: argparse.Namespace) -> OrderGiven:
    """The order that records what an incident really was. Raises UsageError for a reason that nobody knows."""
    from supervisor.diagnosis.api import CATEGORY_OF_REASON

    if arguments.reason not in CATEGORY_OF_REASON:
        near = difflib.get_close_matches(arguments.reason, CATEGORY_OF_REASON, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(CATEGORY_OF_REASON))}"
        raise UsageError(f"unknown reason {arguments.reason!r}; {hint}")
    return OrderGiven(
        at=time.time(),
        order=OrderKind.CORRECT,
        who=who(),
        why=arguments.why,
        incident=arguments.number,
        reason=arguments.reason,
    )


def batch_range(text: str) -> BatchRange:
    """Batches `FROM-TO`. Raises UsageError."""
    match = _SPAN.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(
            f"skip {text}: expected FROM-TO with two batch indices, the first not above the second, as in 1200-1399"
        )
    return BatchRange(int(match[1]), int(match[2]))


def who() -> str:
    """Who gives the order, as `user@host`, for the journal."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
