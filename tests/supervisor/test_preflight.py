# SPDX-License-Identifier: Apache-2.0
"""What would go wrong is found before anything is started, and each finding says what to do."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import checkpoint
from supervisor import preflight
from supervisor.config import Settings, load_settings
from supervisor.preflight import Finding, Level

ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
PYTHON = (sys.executable, "train.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("")
    return folder


def settings(project: Path, **keys: object) -> Settings:
    return load_settings(
        None, {"run.folder": str(project / "run"), **{k.replace("__", "."): v for k, v in keys.items()}}
    )


def errors(
    project: Path, command: tuple[str, ...] = PYTHON, environment: dict[str, str] | None = None, **keys: object
) -> list[str]:
    found = preflight.findings(settings(project, **keys), command, project, environment or ENVIRONMENT)
    return [each.text for each in found if each.level is Level.ERROR]


def test_a_sound_project_has_no_errors(project: Path) -> None:
    assert errors(project) == []
    assert errors(project, ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")) == []


@pytest.mark.parametrize("taken", ["checkpoint.py", "supervisor/__init__.py", "schedulers.py", "nccl_probe.py"])
def test_a_module_beside_the_script_that_takes_our_name_is_an_error_that_says_which(project: Path, taken: str) -> None:
    (project / taken).parent.mkdir(exist_ok=True)
    (project / taken).write_text("")
    (error,) = errors(project)
    assert str(project / taken.removesuffix("/__init__.py")) in error
    assert "rename or remove it" in error


def test_a_folder_of_saved_checkpoints_beside_the_script_does_no_harm(project: Path) -> None:
    (project / "checkpoint").mkdir()
    assert errors(project) == []


def test_a_module_on_the_python_path_that_takes_our_name_is_found(project: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.py").write_text("")
    (error,) = errors(project, environment={**ENVIRONMENT, "PYTHONPATH": f"/nowhere{os.pathsep}{tmp_path}"})
    assert str(tmp_path / "checkpoint.py") in error


def test_our_own_packages_on_the_python_path_are_fine(project: Path) -> None:
    ours = Path(checkpoint.__file__).parents[1]
    assert errors(project, environment={**ENVIRONMENT, "PYTHONPATH": str(ours)}) == []


def test_the_script_in_another_folder_is_looked_at_there(project: Path) -> None:
    (project / "checkpoint.py").write_text("")
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("")
    assert errors(project, (sys.executable, "elsewhere/train.py")) == []


def test_shadowing_can_be_allowed_for_scripts_that_use_none_of_our_packages(project: Path) -> None:
    (project / "checkpoint.py").write_text("")
    assert errors(project, launch__allow_shadowing=True) == []


def test_pypis_supervisor_in_the_scripts_interpreter_is_found(project: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "supervisor-4.2.5.dist-info").mkdir(parents=True)
    (site / "supervisor-4.2.5.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: supervisor\nVersion: 4.2.5\n"
    )
    interpreter = tmp_path / "python3-with-site"
    interpreter.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    (error,) = errors(project, (str(interpreter), "train.py"))
    assert f"'supervisor' 4.2.5 is installed in {site}" in error
    assert "-m pip uninstall supervisor" in error


def test_the_interpreter_of_torchrun_is_that_of_its_first_line(tmp_path: Path) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.write_text("#!/opt/env/bin/python3.12\n")
    torchrun.chmod(0o755)
    assert preflight.interpreter_of((str(torchrun), "train.py"), ENVIRONMENT) == "/opt/env/bin/python3.12"
    torchrun.write_text("#!/bin/sh\n")
    assert preflight.interpreter_of((str(torchrun), "train.py"), ENVIRONMENT) is None


def test_a_program_that_does_not_exist_is_named(project: Path) -> None:
    assert errors(project, ("no-such-program",)) == [
        "there is no program 'no-such-program'; correct the command, or give the whole path"
    ]


def test_a_program_is_looked_for_in_the_working_folder_when_it_is_a_path(project: Path) -> None:
    (project / "start.sh").write_text("#!/bin/sh\n")
    (project / "start.sh").chmod(0o755)
    assert errors(project, ("./start.sh",)) == []


def test_a_script_that_does_not_exist_is_named(project: Path) -> None:
    (error,) = errors(project, (sys.executable, "trian.py"))
    assert error == f"there is no training script {project / 'trian.py'}; correct its path"


def test_flags_of_torchrun_that_fight_with_supervision_are_errors(project: Path) -> None:
    (error,) = errors(project, ("torchrun", "--max-restarts", "3", "train.py"))
    assert "--max-restarts in the torchrun command" in error


def test_a_run_folder_below_a_file_is_an_error_that_names_the_flag(project: Path) -> None:
    (project / "taken").write_text("")
    (error,) = errors(project, run__folder=str(project / "taken" / "run"))
    assert f"{project / 'taken'} is a file; name another: --folder" in error


def test_a_folder_that_cannot_be_written_is_an_error_with_the_next_step() -> None:
    (found,) = preflight.writable(Path("/proc/nowhere"), "run folder", "--folder")
    assert found.level is Level.ERROR
    assert "cannot be written" in found.text and "name another with --folder" in found.text


def test_writing_is_tried_without_leaving_anything_behind(project: Path) -> None:
    found = preflight.writable(project / "new" / "run", "run folder", "--folder")
    assert found[0] == Finding(Level.GOOD, f"run folder {project / 'new' / 'run'}: written and read back")
    assert sorted(each.name for each in project.iterdir()) == ["train.py"]


def test_a_disk_that_is_nearly_full_is_a_warning() -> None:
    usage = shutil.disk_usage("/")
    assert preflight.nearly_full(Path("/x"), "run folder", usage._replace(total=10**13, free=10**9)) is not None
    assert preflight.nearly_full(Path("/x"), "run folder", usage._replace(total=10**13, free=10**12)) is None
    assert preflight.nearly_full(Path("/x"), "run folder", usage._replace(total=10**10, free=10**9)) is None


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        (None, None),
        ("s3://bucket/run", None),
        ("file:///scratch/run", Path("/scratch/run")),
        ("saved", Path("/work here/saved")),
        ("/scratch/run", Path("/scratch/run")),
    ],
)
def test_only_checkpoints_in_a_file_system_are_tried(uri: str | None, path: Path | None) -> None:
    assert preflight.local_path(uri, Path("/work here")) == path
