# SPDX-License-Identifier: Apache-2.0
"""Finds the peer of this node: the nodes of a job form a ring, in the order of their ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from checkpoint.launch import Identity
from checkpoint.peer_wire import PeerAddress
from checkpoint.ranks import joined
from checkpoint.replicas import own_host
from checkpoint.wire import Lines, Message, TakeReplicas, TakingReplicas, encode
from checkpoint.writer_link import Line

_log = logging.getLogger(__name__)
_DEADLINE_S = 60.0
_POLL_S = 0.05
_READ_BYTES = 1 << 16


def find_peer(line: Line, location: str, environment: Mapping[str, str], identity: Identity) -> PeerAddress | None:
    """The writer that keeps replicas of this node's snapshots; None, with a line in the log, when there is none.

    Collective: every rank of the job calls it.
    """
    with joined(identity) as ranks:
        if not ranks.is_joint:
            _log.warning("there are no replicas of snapshots: ranks without a process group cannot find a peer")
            return None
        mine = _ask(line, location, own_host(environment))
        told = ranks.everyones(mine)
    peer = next_in_ring(told, ranks.rank)
    if peer is None and ranks.rank == 0:
        _log.warning("there are no replicas of snapshots: all ranks are on one node, or writers take none")
    return peer


def next_in_ring(told: Sequence[PeerAddress | None], rank: int) -> PeerAddress | None:
    """The address behind that of a rank's node, where every rank told that of its own node."""
    nodes = list(dict.fromkeys(each for each in told if each is not None))
    mine = told[rank]
    if mine is None or len(nodes) < 2:
        return None
    return nodes[(nodes.index(mine) + 1) % len(nodes)]


def _ask(line: Line, location: str, host: str) -> PeerAddress | None:
    """Where this node's writer takes replicas; it is started if there is none."""
    ends, why = time.monotonic() + _DEADLINE_S, ""
    while time.monotonic() < ends:
        try:
            with line.connect() as connection:
                connection.sendall(encode(TakeReplicas(location, host)))
                lines, heard = Lines(), list[Message]()
                while not heard:
                    payload = connection.recv(_READ_BYTES)
                    if not payload:
                        raise ConnectionResetError("the writer left")
                    heard = lines.feed(payload)
        except OSError as error:
            why = str(error)
            time.sleep(_POLL_S)
            continue
        (answer,) = heard
        if isinstance(answer, TakingReplicas) and answer.port:
            return PeerAddress(answer.host, answer.port, answer.secret)
        why = answer.why if isinstance(answer, TakingReplicas) else f"it answered {answer}"
        break
    _log.warning("this node's checkpoint writer takes no replicas why=%s", why)
    return None
