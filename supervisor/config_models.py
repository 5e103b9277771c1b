# SPDX-License-Identifier: Apache-2.0
"""The configuration file as pydantic models: what may be written, in which unit, and what holds when it is not.

Defaults are those of the dataclasses that the program works with, so that each is written once. The docstring under a
field is its documentation: docs/config.md is made from it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from supervisor import config, config_errors
from supervisor.agent.api import LaunchSpec
from supervisor.config import ConfigError
from supervisor.core import api as core
from supervisor.detection.progress import HangPolicy

_POLICY = core.Policy()
_HANG = HangPolicy()
_MIB = 2**20

Seconds = Annotated[float, Field(gt=0)]
SecondsOrZero = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class RunSection(Section):
    """What is run, and where."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "run"
    """Name of the run, by which every other command finds it. Not given: the script's name and a hash of its folder."""
    folder: Text | None = None
    """The run's own folder, for the journal, logs and evidence; a relative one counts from the working folder.
    Not given: `runs/NAME` below `$SUPERVISOR_HOME` (or `~/.pretraining-supervisor`)."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Nodes of an attempt."""
    spares: Count = _POLICY.spare_nodes
    """Further nodes that stand by, so that a faulty one can be left out."""
    scheduler: Text = "local"
    """Who starts the nodes: `local` (this machine)."""

    def settings(self) -> config.RunSettings:
        folder = config.home() / "runs" / self.name if self.folder is None else Path(self.folder).expanduser()
        return config.RunSettings(self.name, folder.absolute(), self.nodes, self.spares, self.scheduler)


class BudgetSection(Section):
    count: Count
    """Failures that are answered with a relaunch."""
    window_s: Seconds
    """Seconds within which they count."""


def _budget(category: core.Category) -> BudgetSection:
    known = _POLICY.budget(category)
    return BudgetSection(count=known.count, window_s=known.window_s)


class BudgetsSection(Section):
    """How many failures of each category are answered with a relaunch within a time; one more ends the run."""

    infrastructure: BudgetSection = _budget(core.Category.INFRASTRUCTURE)
    """Hardware, network, storage and whatever else the script cannot help."""
    framework: BudgetSection = _budget(core.Category.FRAMEWORK)
    """Failures inside the training framework."""
    script: BudgetSection = _budget(core.Category.SCRIPT)
    """Errors of the training script, which another try does not mend."""
    other: BudgetSection = _budget(core.Category.OTHER)
    """Loss spikes, silent hangs, and failures that nothing explains."""

    def settings(self) -> tuple[tuple[core.Category, core.Budget], ...]:
        return tuple(
            (category, core.Budget(section.count, section.window_s))
            for category, section in (
                (core.Category.INFRASTRUCTURE, self.infrastructure),
                (core.Category.FRAMEWORK, self.framework),
                (core.Category.SCRIPT, self.script),
                (core.Category.OTHER, self.other),
            )
        )


class PolicySection(Section):
    """What the supervisor may do, how often, and how long everything may take."""

    mode: core.Mode = _POLICY.mode
    """`observe` watches and tells, `advise` says what it would do and waits for `supervisor approve`, `act` does it.
    `supervisor attach` only observes or advises, and advises by default."""
    powers: frozenset[core.Power] = _POLICY.powers
    """What is done without asking in mode `act`; for the others it asks a person."""
    stop_s: Seconds = _POLICY.stop_s
    """Seconds beyond grace and evidence until an attempt that was told to stop counts as unstoppable."""
    stop_grace_s: SecondsOrZero = _POLICY.stop_grace_s
    """Seconds from SIGTERM to SIGKILL for the ranks of a failed attempt."""
    evidence_s: SecondsOrZero = _POLICY.evidence_s
    """Seconds that stacks and flight recorders of a hung attempt may take before it is stopped."""
    finish_grace_s: SecondsOrZero = _POLICY.finish_grace_s
    """Seconds for ranks to finish the step and commit a checkpoint when the run is to stop."""
    report_silence_s: Seconds = _POLICY.report_silence_s
    """Seconds without a word from any node agent after which the attempt counts as lost."""
    diagnose_s: Seconds = _POLICY.diagnose_s
    """Seconds that a diagnosis may take; without an answer the failure counts as unknown."""
    probe_s: Seconds = _POLICY.probe_s
    """Seconds that a test of the nodes may take."""
    person_s: Seconds = _POLICY.person_s
    """Seconds after which a person who was asked is asked again."""
    budgets: BudgetsSection = BudgetsSection()
    """Tables `[policy.budgets]` below."""
    same_failure_limit: Annotated[int, Field(ge=1)] = _POLICY.same_failure_limit
    """So many failures in a row with one reason at one step, or before the first step, end the run early."""
    backoff_s: SecondsOrZero = _POLICY.backoff_s
    """Seconds before the second launch in a row without progress, doubled each time; the first one is immediate."""
    backoff_most_s: SecondsOrZero = _POLICY.backoff_most_s
    """Longest wait in seconds before a launch."""
    service_wait_s: Seconds = _POLICY.service_wait_s
    """First wait in seconds for a storage or service that is away, doubled each time."""
    most_rollbacks: Count = _POLICY.most_rollbacks
    """Rollbacks over loss spikes before a person is needed."""
    rollback_margin_steps: Count = _POLICY.rollback_margin_steps
    """Steps by which a rollback's checkpoint is older than the spike's onset (PaLM: about 100, arXiv 2204.02311)."""
    skip_batches: Annotated[int, Field(ge=1)] = _POLICY.skip_batches
    """Batches that are left out from the spike's onset on (PaLM: 200 to 500, arXiv 2204.02311)."""
    skip_first: bool = _POLICY.skip_first
    """Leave the batches out at the first spike already, without the replay that tells bad data from chance."""
    same_place_batches: Count = _POLICY.same_place_batches
    """Two spikes whose onsets lie within so many batches are one."""
    ask_when_exhausted: bool = _POLICY.ask_when_exhausted
    """Wait for a person, instead of ending the run, when a budget is used up."""
    services_off: dict[str, dict[str, str]] = {name: dict(pairs) for name, pairs in _POLICY.services_off}
    """By service, the environment with which a relaunch does without it; an empty table means to wait for it.
    Tables given here are added to the default ones."""


class DetectionSection(Section):
    """When silence counts as a hang, and how progress is read from a script that does not report."""

    floor_s: Seconds = _HANG.floor_s
    """Shortest deadline in seconds for a step; the actual one is learned from the run's own step times."""
    cap_s: Seconds = _HANG.cap_s
    """Longest deadline in seconds for a step."""
    startup_s: Seconds = _POLICY.startup_s
    """Seconds from the launch to the first step."""
    warmup_s: Seconds = _HANG.warmup_s
    """Shortest deadline in seconds for the first steps after a start or a compilation."""
    silence_s: Seconds = _HANG.silence_s
    """Seconds without output after which a script that reports no steps counts as hung."""
    pause_s: Seconds = _HANG.pause_s
    """Seconds that a known pause may last until its usual length is learned."""
    pauses: dict[str, Seconds] = dict(_HANG.pause_s_by_name)
    """By name of a known pause (as in `run.phase("evaluation")`), the seconds that it may last."""
    step_pattern: str | None = None
    """Regular expression for a progress line of a script that does not report, with the named group `step`
    and, where the line has them, `loss`, `grad_norm` and `tokens`. Not given: patterns of well-known frameworks."""

    @field_validator("step_pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groupindex
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        if "step" not in groups:
            raise ValueError("the pattern needs a group (?P<step>...)")
        return pattern

    @model_validator(mode="after")
    def _ordered(self) -> DetectionSection:
        if self.floor_s > self.cap_s:
            raise ValueError(f"floor_s = {self.floor_s:g} must be at most cap_s = {self.cap_s:g}")
        return self

    def settings(self) -> config.DetectionSettings:
        hang = HangPolicy(
            floor_s=self.floor_s,
            cap_s=self.cap_s,
            startup_s=self.startup_s,
            warmup_s=self.warmup_s,
            silence_s=self.silence_s,
            pause_s=self.pause_s,
            pause_s_by_name={**_HANG.pause_s_by_name, **self.pauses},
        )
        return config.DetectionSettings(hang, self.step_pattern)


class CheckpointSection(Section):
    """Where checkpoints are, for scripts that do not use the checkpoint library."""

    uri: Text | None = None
    """Folder or URI of the run's checkpoints. Not given: the script tells. Those of Megatron, DeepSpeed, Hugging Face,
    torchtitan and `torch.distributed.checkpoint` are known by themselves."""
    resume_argument: str = ""
    """Added to the command of an attempt that resumes, with `{checkpoint}` (a path) or `{step}` filled in,
    for example `--resume {checkpoint}` or, for Megatron, `--ckpt-step {step}`. It is the newest whole checkpoint, and
    after a rollback an older one."""
    pattern: Text | None = None
    """Glob of the checkpoints that a script writes in another form, below `uri` or the working folder,
    for example `out/model-*.pt`; the last number of the name is the step."""

    @field_validator("resume_argument")
    @classmethod
    def _splits(cls, argument: str) -> str:
        try:
            words = shlex.split(argument)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {error}") from None
        if words and "{checkpoint}" not in argument and "{step}" not in argument:
            raise ValueError("needs {checkpoint} or {step}")
        return argument

    def settings(self) -> config.CheckpointSettings:
        return config.CheckpointSettings(self.uri, tuple(shlex.split(self.resume_argument)), self.pattern)


class LaunchSection(Section):
    """How attempts are started and what is kept of their output."""

    warm: Literal["off", "launcher", "ranks"] = "launcher"
    """What stands by for the next attempt: nothing, a launcher with torch imported, or also the ranks' interpreters."""
    output: Literal["none", "rank0", "all"] = "rank0"
    """Whose output is shown; every rank's is kept in the run folder."""
    log_limit_mb: Annotated[float, Field(gt=0)] = LaunchSpec((), "", (), "").log_limit_bytes / _MIB
    """MiB of each rank's log kept in plain form; older parts are compressed."""
    report_interval_s: Seconds = LaunchSpec((), "", (), "").report_interval_s
    """Seconds between two reports of a node agent."""
    allow_shadowing: bool = False
    """Start although the script's folder has a module named like one of our packages (`checkpoint`, `supervisor`,
    ...): for a script that uses none of ours."""

    def settings(self) -> config.LaunchSettings:
        return config.LaunchSettings(
            warm=self.warm,
            log_limit_bytes=int(self.log_limit_mb * _MIB),
            output=self.output,
            report_interval_s=self.report_interval_s,
            allow_shadowing=self.allow_shadowing,
        )


class ConfigurationFile(Section):
    run: RunSection = RunSection()
    policy: PolicySection = PolicySection()
    detection: DetectionSection = DetectionSection()
    checkpoint: CheckpointSection = CheckpointSection()
    launch: LaunchSection = LaunchSection()
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}
    """Variables that are added to the environment of every attempt, for example `NCCL_DEBUG = "INFO"`."""

    def settings(self) -> config.Settings:
        return config.Settings(
            run=self.run.settings(),
            policy=self._policy(),
            detection=self.detection.settings(),
            checkpoint=self.checkpoint.settings(),
            launch=self.launch.settings(),
            environment=tuple(self.environment.items()),
        )

    def _policy(self) -> core.Policy:
        fields: dict[str, Any] = {name: getattr(self.policy, name) for name in PolicySection.model_fields}
        services = {name: dict(pairs) for name, pairs in _POLICY.services_off} | self.policy.services_off
        fields |= {
            "budgets": self.policy.budgets.settings(),
            "services_off": tuple((name, tuple(pairs.items())) for name, pairs in services.items()),
            "startup_s": self.detection.startup_s,
            "spare_nodes": self.run.spares,
        }
        return core.Policy(**fields)


def settings_from(layers: Mapping[str, Any], written: Mapping[str, Any], source: str) -> config.Settings:
    """The settings of the merged `layers`. Raises ConfigError, which blames `source` only for what is in `written`."""
    try:
        # Strict JSON takes a list for a set and a string for an enum, but neither "5" nor true for a number.
        return ConfigurationFile.model_validate_json(json.dumps(layers, default=str), strict=True).settings()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(config_errors.explained(first, ConfigurationFile, written, source)) from None
