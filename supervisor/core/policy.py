# SPDX-License-Identifier: Apache-2.0
"""What the user allows: modes, budgets, deadlines and the answers to a loss spike. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.values import Category, Grant, Mode, Power


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `count` failures of a category within `window_s`."""

    count: int
    window_s: float


@dataclass(frozen=True, slots=True)
class Policy:
    mode: Mode = Mode.ACT
    powers: frozenset[Power] = frozenset(Power)

    startup_s: float = 600.0
    """From the launch to the first step."""
    report_silence_s: float = 180.0
    """TRAINING ends when no agent has said for this long that the attempt is well."""
    stop_s: float = 60.0
    """Beyond grace and evidence, until an attempt that was told to stop counts as unstoppable."""
    stop_grace_s: float = 5.0
    """SIGTERM to SIGKILL for the ranks of a failed attempt."""
    evidence_s: float = 10.0
    """Limit for stacks and flight recorders before a hung attempt is stopped."""
    finish_grace_s: float = 60.0
    """For ranks to finish the step and commit a checkpoint when a person or the scheduler wants the run to stop."""
    diagnose_s: float = 60.0
    probe_s: float = 300.0
    person_s: float = 3600.0
    """A person who was asked is asked again after this long."""

    budgets: tuple[tuple[Category, Budget], ...] = (
        (Category.INFRASTRUCTURE, Budget(20, 86_400.0)),
        (Category.FRAMEWORK, Budget(4, 3_600.0)),
        (Category.SCRIPT, Budget(0, 3_600.0)),
        (Category.OTHER, Budget(6, 3_600.0)),
    )
    same_failure_limit: int = 2
    """So many failures in a row with one reason at one step (or before the first step) end the run early."""
    backoff_s: float = 5.0
    """Before the second launch in a row without progress; doubled each time, the first relaunch is immediate."""
    backoff_most_s: float = 300.0
    service_wait_s: float = 30.0
    """First wait for a storage or service that is away; doubled each time."""

    most_rollbacks: int = 3
    rollback_margin_steps: int = 100
    """PaLM restarted about 100 steps before a spike (arXiv 2204.02311, section 5.1)."""
    skip_batches: int = 200
    """PaLM left out 200 to 500 batches (arXiv 2204.02311, section 5.1)."""
    skip_first: bool = False
    """Leave the batches out at the first spike already, without a replay that tells data from chance."""
    same_place_batches: int = 20
    """Two spikes whose onsets lie within so many batches are one."""

    ask_when_exhausted: bool = False
    """Wait for a person instead of ending the run when a budget is used up."""
    can_probe: bool = False
    spare_nodes: int = 0
    services_off: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
        ("wandb", (("WANDB_MODE", "offline"),)),
        ("huggingface", (("HF_HUB_OFFLINE", "1"),)),
        ("mlflow", (("MLFLOW_TRACKING_URI", "file:./mlruns"),)),
        ("comet", (("COMET_MODE", "disabled"),)),
    )
    """Environment by which a relaunch does without an outside service that failed."""

    def budget(self, category: Category) -> Budget:
        return dict(self.budgets)[category]

    def grant(self, power: Power, *, frozen: bool = False) -> Grant:
        """What may be done with `power`: act, ask a person first, or only tell."""
        if frozen or self.mode is Mode.OBSERVE:
            return Grant.TELL
        if self.mode is Mode.ADVISE or power not in self.powers:
            return Grant.ASK
        return Grant.ACT
