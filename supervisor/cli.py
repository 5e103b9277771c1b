# SPDX-License-Identifier: Apache-2.0
"""The command line, `supervisor COMMAND`: what may be asked for. What is done lies in `supervisor.commands`.

Only argparse is imported up front, so that help and wrong usage answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

from supervisor import __version__

WRONG_USAGE = 2
_STOPPED = 130
_READER_GONE = 141
"""128 + SIGPIPE, as a shell reports it."""

_EPILOG = """\
RUN is a run's name or its folder; without it the newest run is meant. Runs are kept in $SUPERVISOR_HOME/runs
(default ~/.pretraining-supervisor/runs). The configuration file is described in docs/config.md.

exit codes: 0 done; 2 wrong usage, with what to do instead; 3 the run was abandoned, with the reason on the last
lines; 130 stopped by the person; 143 ended after SIGTERM
"""
_RUN_EPILOG = """\
example: supervisor run --name gpt -- torchrun --standalone --nproc-per-node 8 train.py

A run of the same name that was stopped, or whose supervisor died, is taken up again where it stands.
exit codes: 0 done; 2 wrong usage; 3 abandoned, with the reason on the last lines; 130 stopped by the person;
143 ended after SIGTERM
"""

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  (it has no public name)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _do(_parsed(words))
    except SystemExit:
        # Help and wrong usage; nothing has to be imported to tell what it is not.
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except KeyboardInterrupt:
        return _STOPPED
    except _expected_errors() as error:
        sys.stderr.write(f"supervisor: error: {error}\n")
        return WRONG_USAGE


def _parsed(words: list[str]) -> argparse.Namespace:
    """Exits by itself for help and for wrong usage."""
    before, command = _split(words)
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(before)
    if unknown:
        hint = f"; the command to run comes behind --: supervisor {arguments.subcommand} [options] -- COMMAND..."
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint if arguments.takes_command else ''}")
    arguments.command = command
    if command is not None and not arguments.takes_command:
        parser.error(f"{arguments.subcommand} takes no command after --")
    return arguments


def _do(arguments: argparse.Namespace) -> int:
    from supervisor import commands

    act: Callable[[argparse.Namespace], int] = getattr(commands, f"do_{arguments.act}")
    code = act(arguments)
    sys.stdout.flush()
    return code


def _expected_errors() -> tuple[type[Exception], ...]:
    """Looked up only once something went wrong: the error bases of the packages, whose messages are for a person."""
    from checkpoint.api import CheckpointError
    from schedulers.api import SchedulerError
    from supervisor.controller.api import ControllerError
    from supervisor.errors import UsageError

    return UsageError, ControllerError, SchedulerError, CheckpointError


def _split(words: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """What stands before the first `--`, and the command behind it."""
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], tuple(words[at + 1 :])


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="supervisor",
        description="Supervises long pretraining runs: notices failures, finds the cause and relaunches.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pretraining-supervisor {__version__}")
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    _add_starting(commands)
    _add_looking(commands)
    _add_orders(commands)
    _add_nodes(commands)
    _add(commands, "version", "print the version")
    return parser


def _add(
    commands: Commands,
    name: str,
    text: str,
    *,
    act: str | None = None,
    takes_command: bool = False,
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(act=act or name, takes_command=takes_command)
    return parser


def _add_starting(commands: Commands) -> None:
    run = _add(commands, "run", "supervise a launch until it ends", takes_command=True, epilog=_RUN_EPILOG)
    run.usage = "supervisor run [options] -- COMMAND..."
    _add_settings(run)
    run.add_argument("--mode", choices=("observe", "advise", "act"), help="only tell, ask first, or act (default)")
    attach = _add(commands, "attach", "watch a launch that somebody else started, without changing it")
    attach.add_argument("target", metavar="PID", help="process id of the launcher")
    attach.add_argument("-c", "--config", metavar="FILE", help="configuration file (TOML)")
    attach.add_argument("--name", metavar="RUN", help="name by which the other commands find it (default: attach-PID)")
    attach.add_argument("--folder", metavar="FOLDER", help="folder for the journal")
    attach.add_argument("--mode", choices=("observe", "advise"), help="only tell, or say what to do (default)")
    check = _add(commands, "check", "find what would go wrong before a run is started", takes_command=True)
    check.usage = "supervisor check [options] -- COMMAND..."
    _add_settings(check)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument("--name", metavar="RUN", help="name of the run (default: script and a hash of its folder)")
    parser.add_argument("--nodes", type=int, metavar="N", help="nodes of an attempt (default 1)")
    parser.add_argument("--spares", type=int, metavar="K", help="further nodes that stand by (default 0)")
    parser.add_argument("--scheduler", metavar="NAME", help="who starts the nodes (default local: this machine)")
    parser.add_argument("--folder", metavar="FOLDER", help="the run's own folder: journal, logs, evidence")
    parser.add_argument("--checkpoint", metavar="URI", help="where the checkpoints are, if the script does not tell")
    parser.add_argument("--output", choices=("none", "rank0", "all"), help="whose output is shown (default rank0)")
    parser.add_argument("--warm", choices=("off", "launcher", "ranks"), help="what stands by for the next attempt")


def _add_looking(commands: Commands) -> None:
    status = _add(commands, "status", "tell where a run stands")
    _add_run(status)
    _add_format(status)
    story = _add(commands, "story", "tell what happened, why, and what was done, as a timeline")
    _add_run(story)
    _add_format(story)
    story.add_argument("--incident", type=int, metavar="N", help="only this incident")
    incident = _add(commands, "incident", "tell of one incident, or correct its diagnosis")
    incident.add_argument("number", type=int, metavar="N", help="number of the incident")
    _add_run(incident)
    incident.add_argument("--reason", metavar="REASON", help="what it really was, for example NVLinkError")
    incident.add_argument("--why", default="", metavar="TEXT", help="how you know, for the journal")
    _add_format(incident)
    plot = _add(commands, "plot", "draw the loss with its rollbacks")
    _add_run(plot)
    plot.add_argument("-o", "--output", metavar="FILE.png", help="picture to write; without it only a line of text")
    plot.add_argument("--by", choices=("step", "time"), default="time", help="what the picture goes by (default time)")
    diagnose = _add(commands, "diagnose", "find the cause of a failure in logs")
    diagnose.add_argument("paths", nargs="+", metavar="PATH", help="files, folders, or - for standard input")
    _add_format(diagnose)


def _add_orders(commands: Commands) -> None:
    for name, text in (
        ("pause", "let the run save and stop until `resume`"),
        ("resume", "go on after a pause, or when a person was asked for"),
        ("stop", "let the run save, and end it"),
        ("approve", "allow what the supervisor proposed"),
        ("freeze", "let nothing be stopped, launched or isolated until `thaw`"),
        ("thaw", "end a freeze"),
    ):
        _add_run(_add_order(commands, name, text))
    rollback = _add_order(commands, "rollback", "go back to a committed checkpoint and train on from there")
    rollback.add_argument(
        "--to", type=int, required=True, metavar="STEP", help="the newest one up to this step is taken"
    )
    _add_run(rollback)
    skip = _add_order(commands, "skip", "leave out batches FROM to TO, both included")
    skip.add_argument("span", metavar="FROM-TO", help="batch indices, for example 1200-1399")
    _add_run(skip)
    replace = _add_order(commands, "replace", "go on without a node, on a spare one")
    replace.add_argument("node", metavar="NODE")
    _add_run(replace)


def _add_order(commands: Commands, name: str, text: str) -> argparse.ArgumentParser:
    parser = _add(commands, name, text, act="order")
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason, for the journal")
    return parser


def _add_nodes(commands: Commands) -> None:
    nodes = _add(commands, "nodes", "list the nodes that a run holds out of scheduling, and why")
    _add_run(nodes)
    _add_format(nodes)
    uncordon = _add(commands, "uncordon", "give a node back to scheduling")
    uncordon.add_argument("node", metavar="NODE")
    _add_run(uncordon)
    node = _add(commands, "node", "run the node agent (the schedulers start it)")
    node.add_argument("--run-folder", required=True, metavar="FOLDER", help="folder of the run")
    node.add_argument("--run", required=True, metavar="RUN", help="name of the run")
    node.add_argument("--node", required=True, metavar="NODE", help="name of this node in the allocation")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="name or folder of the run (default: the newest)")


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json"), default="text", help="text (default) or json")


if __name__ == "__main__":
    sys.exit(main())
