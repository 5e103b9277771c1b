# SPDX-License-Identifier: Apache-2.0
"""The settings of a run, from one TOML file, the command line and the defaults.

Inside the program they are the frozen dataclasses of this module. Only reading them needs pydantic (`config_models`),
which is imported then and not before, so that `supervisor status` and the node agents do not pay for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.core.api import Policy
from supervisor.detection.progress import HangPolicy
from supervisor.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class ConfigError(UsageError):
    """A setting is unknown or has a value that is not allowed; the message names it, where it stands and what is."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    name: str
    folder: Path
    """The run's own folder: journal, logs, evidence."""
    nodes: int
    spares: int
    scheduler: str


@dataclass(frozen=True, slots=True)
class DetectionSettings:
    hang: HangPolicy
    step_pattern: str | None
    """A regular expression with the named group `step`, and `loss`, `grad_norm`, `tokens` where it can tell them."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    uri: str | None
    """Where the run's checkpoints are, when the script does not tell."""
    resume_argument: tuple[str, ...]
    """Added to the command of an attempt that resumes; `{checkpoint}` and `{step}` are filled in."""
    pattern: str | None


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    warm: str
    """`off`, `launcher` or `ranks`."""
    log_limit_bytes: int
    output: str
    """`none`, `rank0` or `all`."""
    report_interval_s: float
    allow_shadowing: bool


@dataclass(frozen=True, slots=True)
class Settings:
    run: RunSettings
    policy: Policy
    detection: DetectionSettings
    checkpoint: CheckpointSettings
    launch: LaunchSettings
    environment: tuple[tuple[str, str], ...] = ()
    """Added to every attempt's environment."""


def home() -> Path:
    """Where the supervisor keeps its runs: $SUPERVISOR_HOME, else ~/.pretraining-supervisor."""
    chosen = os.environ.get("SUPERVISOR_HOME")
    return Path(chosen).absolute() if chosen else Path.home() / ".pretraining-supervisor"


def load_settings(
    path: Path | None, overrides: Mapping[str, Any] | None = None, defaults: Mapping[str, Any] | None = None
) -> Settings:
    """The settings of the file at `path`, below them `defaults`, above them `overrides`.

    Both mappings go from `section.key` to a value as TOML would hold it; None counts as not given. Raises ConfigError.
    """
    from supervisor import config_models

    written = {} if path is None else read_toml(path)
    layers = _merged(_merged(_nested(defaults or {}), written), _nested(overrides or {}))
    return config_models.settings_from(layers, written, "the command line" if path is None else str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    try:
        with path.open("rb") as file:
            tables: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}; give an existing file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return tables


def _nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in dotted.items():
        if value is not None:
            section, _, key = name.partition(".")
            result.setdefault(section, {})[key] = value
    return result


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Section by section; a section that is no table is kept as it is, for the check to name."""
    result = dict(below)
    for section, keys in above.items():
        known = result.get(section)
        result[section] = {**known, **keys} if isinstance(known, dict) and isinstance(keys, dict) else keys
    return result
