# SPDX-License-Identifier: Apache-2.0
"""Keeps the evidence of an incident beside the agent's loop, which must go on watching meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from supervisor.agent import evidence
from supervisor.agent.api import EvidenceKept, KeepEvidence, StopAttempt
from supervisor.agent.record import AttemptRecord, KnownRank
from supervisor.agent.site import Site


class EvidenceThread:
    """Of one attempt; each incident's evidence is taken once."""

    def __init__(self, site: Site, written: AttemptRecord, rank_folder: Path) -> None:
        self._site = site
        self._attempt = written.attempt
        self._rank_folder = rank_folder
        self._recorder_folder = Path(written.spec.attempt_folder) / "flight-recorder"
        self._taken: set[int] = set()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, order: StopAttempt | KeepEvidence, targets: Sequence[KnownRank]) -> None:
        """Take it of `targets`, tell what was kept, and wake the loop."""
        if order.incident in self._taken:
            return
        self._taken.add(order.incident)
        self._thread = threading.Thread(target=self._collect, args=(order, targets), name="evidence", daemon=True)
        self._thread.start()

    def _collect(self, order: StopAttempt | KeepEvidence, targets: Sequence[KnownRank]) -> None:
        kept = evidence.collect(
            targets,
            rank_folder=self._rank_folder,
            recorder_folder=self._recorder_folder,
            evidence_folder=Path(order.evidence_folder),
            limit_s=order.evidence_limit_s,
        )
        self._site.tell_at_once(EvidenceKept(self._attempt, time.time(), order.incident, kept.files, kept.notes))
        self._site.watch.wake()
