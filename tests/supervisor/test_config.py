# SPDX-License-Identifier: Apache-2.0
"""One TOML file becomes settings, and whatever is wrong in it is named with its place and what is allowed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor import config_docs, config_models
from supervisor.config import ConfigError, Settings, load_settings
from supervisor.core.api import Budget, Category, Mode, Policy, Power
from supervisor.detection.progress import HangPolicy

PROJECT = Path(__file__).parents[2]


def loaded(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_settings(path)


def test_without_a_file_the_defaults_are_those_of_the_core_and_the_detectors() -> None:
    settings = load_settings(None)
    assert settings.policy == Policy()
    assert settings.detection.hang == HangPolicy()
    assert settings.launch.log_limit_bytes == 256 * 2**20


def test_every_field_of_the_policy_can_be_set_or_is_set_by_another_section() -> None:
    fields = {field.name for field in dataclasses.fields(Policy)}
    elsewhere = {"startup_s", "spare_nodes", "can_probe"}
    assert set(config_models.PolicySection.model_fields) == fields - elsewhere


def test_sections_of_the_file_become_settings(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        """
        [run]
        name = "gpt"
        folder = "/somewhere/gpt"
        spares = 2
        [policy]
        mode = "advise"
        powers = ["stop", "rollback"]
        skip_batches = 500
        [policy.budgets]
        script = { count = 1, window_s = 60 }
        [policy.services_off]
        tracker = { TRACKER = "off" }
        [detection]
        startup_s = 30
        pauses = { upload = 5 }
        step_pattern = "it (?P<step>[0-9]+)"
        [checkpoint]
        resume_argument = "--resume {checkpoint}"
        [launch]
        log_limit_mb = 1
        [environment]
        NCCL_DEBUG = "INFO"
        """,
    )
    assert settings.run.name == "gpt" and settings.run.folder == Path("/somewhere/gpt")
    policy = settings.policy
    assert policy.mode is Mode.ADVISE
    assert policy.powers == {Power.STOP, Power.ROLLBACK}
    assert policy.skip_batches == 500
    assert policy.startup_s == settings.detection.hang.startup_s == 30.0
    assert policy.spare_nodes == 2
    assert policy.budget(Category.SCRIPT) == Budget(1, 60.0)
    assert policy.budget(Category.OTHER) == Policy().budget(Category.OTHER)
    assert dict(policy.services_off)["tracker"] == (("TRACKER", "off"),)
    assert dict(policy.services_off)["wandb"] == (("WANDB_MODE", "offline"),)
    assert settings.detection.hang.pause_s_by_name == {"evaluation": 3600.0, "leaving": 600.0, "upload": 5.0}
    assert settings.checkpoint.resume_argument == ("--resume", "{checkpoint}")
    assert settings.launch.log_limit_bytes == 2**20
    assert settings.environment == (("NCCL_DEBUG", "INFO"),)


def test_the_run_folder_is_below_the_supervisors_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISOR_HOME", "/home/of/runs")
    assert load_settings(None, {"run.name": "gpt"}).run.folder == Path("/home/of/runs/runs/gpt")


def test_the_command_line_goes_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[run]\nnodes = 2\nspares = 2\n")
    overrides = {"run.nodes": 3, "run.spares": None}
    defaults = {"run.spares": 4, "run.name": "from-the-script"}
    run = load_settings(path, overrides, defaults).run
    assert (run.nodes, run.spares, run.name) == (3, 2, "from-the-script")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[polcy]", "unknown section [polcy]; did you mean 'policy'?"),
        ("[policy]\nmod = 'act'", "unknown key 'mod' in section [policy]; did you mean 'mode'?"),
        ("[policy]\nstartup_s = 5", "unknown key 'startup_s' in section [policy]; it belongs to [detection]"),
        ("[launch]\nqqq = 5", "unknown key 'qqq' in section [launch]; known are warm, output,"),
        ("[policy.budgets]\nscrpt = {}", "unknown key 'scrpt' in section [policy.budgets]; did you mean 'script'?"),
        ("[policy]\nmode = 'x'", "[policy] mode = \"x\": expected 'observe', 'advise' or 'act'"),
        ("[policy]\npowers = ['fly']", "[policy.powers] 0 = \"fly\": expected 'stop', 'relaunch'"),
        ("[policy]\npowers = 'stop'", '[policy] powers = "stop": expected a list'),
        ("[policy.budgets]\nscript = { count = 1 }", "[policy.budgets.script] window_s: is missing; give it too"),
        ("[run]\nnodes = '5'", '[run] nodes = "5": expected a valid integer'),
        ("[run]\nnodes = true", "[run] nodes = true: expected a valid integer"),
        ("[run]\nnodes = 0", "[run] nodes = 0: expected greater than or equal to 1"),
        ("[run]\nname = 'a/b'", '[run] name = "a/b": expected a name of at most 100 letters, digits'),
        (
            "[run]\nname = '.'",
            '[run] name = ".": expected a name of at most 100 letters, digits, `.`, `_` and `-` that begins',
        ),
        (f"[run]\nname = '{'x' * 300}'", "x... (302 characters): expected a name of at most 100 letters"),
        ("[environment]\n'a b' = 'c'", "expected a name of letters, digits and `_`"),
        ("run = 3", "[run] = 3: expected a table"),
        ("[detection]\ncap_s = inf", "[detection] cap_s = Infinity: expected a finite number"),
        ("[detection]\nfloor_s = 9\ncap_s = 2", "[detection]: floor_s = 9 must be at most cap_s = 2"),
        ("[detection]\npauses = { evaluation = 0 }", "[detection.pauses] evaluation = 0: expected greater than 0"),
        ("[detection]\nstep_pattern = '('", "not a regular expression"),
        ("[detection]\nstep_pattern = 'it [0-9]+'", "the pattern needs a group (?P<step>...)"),
        ("[checkpoint]\nresume_argument = '--resume'", "needs {checkpoint} or {step}"),
        ('[checkpoint]\nresume_argument = "\'"', "cannot be split into words"),
        ("[environment]\n'A B' = 'x'", "[environment] A B: expected a name of letters"),
        ("[environment]\nA = 3", "[environment] A = 3: expected a valid string"),
        ("[run", "is not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named_with_the_file_and_what_is_allowed(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, text)
    assert told in str(error.value)
    assert str(tmp_path / "run.toml") in str(error.value)


def test_a_wrong_value_of_the_command_line_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[run]\nspares = 1\n")
    with pytest.raises(ConfigError, match=r"^the command line: \[run\] nodes = 0"):
        load_settings(path, {"run.nodes": 0})


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: No such file"):
        load_settings(tmp_path / "gone.toml")


def test_the_documentation_of_the_configuration_is_current() -> None:
    written = (PROJECT / "docs" / "config.md").read_text()
    assert written == config_docs.render(), "run python -m supervisor.config_docs > docs/config.md"


def test_every_setting_is_documented() -> None:
    for section in config_models.ConfigurationFile.model_fields.values():
        model = section.annotation
        if isinstance(model, type) and issubclass(model, config_models.Section):
            assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_importing_the_settings_does_not_import_pydantic() -> None:
    probe = "import sys, supervisor.config; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False, cwd=PROJECT).returncode == 0
