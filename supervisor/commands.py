# SPDX-License-Identifier: Apache-2.0
"""What each command of the command line does: `do_<command>(arguments) -> exit code`.

Whatever is costly to import is imported by the command that needs it; `supervisor status` must answer at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import __version__, orders, runs
from supervisor.config import Settings, load_settings
from supervisor.controller.run_folder import RunFolder
from supervisor.core.api import Mode
from supervisor.core.events import OrderGiven
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from supervisor.controller.story import Story

OK = 0
WRONG_USAGE = 2


def do_version(_arguments: argparse.Namespace) -> int:
    sys.stdout.write(f"pretraining-supervisor {__version__}\n")
    return OK


def do_run(arguments: argparse.Namespace) -> int:
    from supervisor import preflight, wiring

    command = _command(arguments)
    settings = _settings(arguments, command)
    found = preflight.findings(settings, command, Path.cwd(), os.environ)
    for each in found:
        if each.level is preflight.Level.WARNING:
            sys.stderr.write(f"supervisor: warning: {each.text}\n")
    wrong = [each.text for each in found if each.level is preflight.Level.ERROR]
    if wrong:
        raise UsageError("\n  ".join(["nothing was started:", *wrong] if len(wrong) > 1 else wrong))
    runs.register(settings.run.name, settings.run.folder)
    return wiring.run(settings, command)


def do_attach(arguments: argparse.Namespace) -> int:
    from supervisor import wiring

    overrides = {
        "policy.mode": arguments.mode,
        "run.name": arguments.name,
        "run.folder": _absolute(arguments.folder),
    }
    defaults = {"run.name": f"attach-{arguments.target}", "policy.mode": Mode.ADVISE.value}
    config = _path(arguments.config)
    settings = load_settings(config, overrides, defaults)
    if settings.policy.mode is Mode.ACT:  # the file is meant for `run`; attaching has no power to act
        settings = load_settings(config, {**overrides, "policy.mode": Mode.ADVISE.value}, defaults)
    runs.register(settings.run.name, settings.run.folder)
    return wiring.attach(settings, arguments.target)


def do_check(arguments: argparse.Namespace) -> int:
    from supervisor import checks

    command = arguments.command or ()
    found = checks.findings(_settings(arguments, command), command, Path.cwd(), os.environ)
    for each in found:
        sys.stdout.write(f"{each.level.value:<7} {each.text}\n")
    return WRONG_USAGE if any(each.level is checks.Level.ERROR for each in found) else OK


def do_status(arguments: argparse.Namespace) -> int:
    from supervisor import inspection
    from supervisor.controller import status_text

    view = inspection.view(runs.find(arguments.run))
    if arguments.format == "json":
        return _print_json(status_text.status_object(view))
    rows = status_text.status_rows(view)
    if _is_terminal():
        from supervisor.controller import rendering

        rendering.print_status(rows)
    else:
        _print_lines(status_text.plain_lines(rows))
    return OK


def do_story(arguments: argparse.Namespace) -> int:
    return _tell_story(arguments, arguments.incident)


def do_incident(arguments: argparse.Namespace) -> int:
    if arguments.reason is None:
        return _tell_story(arguments, arguments.number)
    from supervisor import inspection

    order = orders.correction(arguments)
    folder = RunFolder(runs.find(arguments.run))
    _told(folder, arguments.number)
    _print_lines(inspection.correct(folder.path, order))
    return OK


def _told(folder: RunFolder, incident: int | None) -> Story:
    """The run's story or one incident of it, with what people corrected. Raises UsageError where there is none."""
    from supervisor import inspection
    from supervisor.controller import incident_files, story

    told = story.tell(inspection.records(folder.path))
    if told is None:
        raise UsageError(f"nothing has happened to the run in {folder.path} yet")
    told = told if incident is None else story.only_incident(told, incident)
    corrected = incident_files.corrections(folder, [each.number for each in told.incidents])
    return replace(told, corrections={**told.corrections, **corrected})


def _tell_story(arguments: argparse.Namespace, incident: int | None) -> int:
    from supervisor.controller import incident_files, story_text

    folder = RunFolder(runs.find(arguments.run))
    told = _told(folder, incident)
    proofs = {each.number: incident_files.proofs(folder.incident(each.number)) for each in told.incidents}
    command = incident_files.command_of(folder.read_description())
    if arguments.format == "json":
        return _print_json(story_text.story_object(told, command, proofs))
    lines = story_text.story_lines(told, command, proofs)
    if _is_terminal():
        from supervisor.controller import rendering

        rendering.print_story(lines)
    else:
        _print_lines(story_text.plain_lines(lines))
    return OK


def do_plot(arguments: argparse.Namespace) -> int:
    from supervisor import inspection
    from supervisor.controller import curve, plot, sparkline

    folder = runs.find(arguments.run)
    drawn = curve.read(inspection.step_rows(folder), inspection.records(folder))
    if not drawn.points:
        raise UsageError(f"the run in {folder} has reported no loss yet; try again when it trains")
    unicode = (sys.stdout.encoding or "").lower().startswith("utf") and _is_terminal()
    _print_lines(sparkline.lines(drawn, unicode=unicode))
    if arguments.output is not None:
        plot.write(drawn, Path(arguments.output), by=arguments.by)
        sys.stdout.write(f"wrote {arguments.output}\n")
    return OK


def do_diagnose(arguments: argparse.Namespace) -> int:
    from supervisor.diagnosis import command

    return command.run(arguments.paths, arguments.format)


def do_order(arguments: argparse.Namespace) -> int:
    return _give(arguments, orders.order_from(arguments))


def _give(arguments: argparse.Namespace, order: OrderGiven) -> int:
    from supervisor import inspection

    said = inspection.give_order(runs.find(arguments.run), order)
    _print_lines(said)
    return WRONG_USAGE if any(line.startswith("refused: ") for line in said) else OK


def do_nodes(arguments: argparse.Namespace) -> int:
    from supervisor import inspection

    folder = runs.find(arguments.run)
    held = inspection.nodes_held(folder)
    if arguments.format == "json":
        return _print_json({"run": folder.name, "held": held})
    _print_lines([f"{node}: {why}" for node, why in sorted(held.items())] or ["no node is held"])
    return OK


def do_uncordon(arguments: argparse.Namespace) -> int:
    from supervisor import inspection

    inspection.uncordon(runs.find(arguments.run), arguments.node)
    sys.stdout.write(f"{arguments.node} is given back to scheduling\n")
    return OK


def do_node(arguments: argparse.Namespace) -> int:
    from supervisor.agent.__main__ import main

    return main(["--run-folder", arguments.run_folder, "--run", arguments.run, "--node", arguments.node])


def _command(arguments: argparse.Namespace) -> tuple[str, ...]:
    command: tuple[str, ...] = arguments.command or ()
    if not command:
        raise UsageError(
            "no command to run; give it behind --, for example: "
            "supervisor run -- torchrun --standalone --nproc-per-node 8 train.py"
        )
    return command


def _settings(arguments: argparse.Namespace, command: tuple[str, ...]) -> Settings:
    overrides = {
        "run.name": arguments.name,
        "run.nodes": arguments.nodes,
        "run.spares": arguments.spares,
        "run.scheduler": arguments.scheduler,
        "run.folder": _absolute(arguments.folder),
        "policy.mode": getattr(arguments, "mode", None),
        "checkpoint.uri": arguments.checkpoint,
        "launch.output": arguments.output,
        "launch.warm": arguments.warm,
    }
    defaults = {"run.name": runs.default_name(command, Path.cwd())} if command else {}
    return load_settings(_path(arguments.config), overrides, defaults)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _absolute(text: str | None) -> str | None:
    return None if text is None else str(Path(text).expanduser().absolute())


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _print_lines(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _print_json(value: dict[str, Any]) -> int:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return OK
