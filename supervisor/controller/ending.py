# SPDX-License-Identifier: Apache-2.0
"""How the newest attempt ended, as far as the agents have told: what a diagnosis needs beside the logs."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.agent import api as agent


@dataclass(frozen=True, slots=True)
class Ending:
    """`exits` holds node and exit of every rank that is gone."""

    exits: tuple[tuple[str, agent.RankExit], ...] = ()
    world_size: int | None = None
    """Ranks that were seen; None while none was."""
    launcher_exit: int | None = None
    """None where the launcher still runs, ended well, or was ended by us."""

    @property
    def stopped_by_us(self) -> frozenset[int]:
        return frozenset(each.rank for _, each in self.exits if each.by_us)
