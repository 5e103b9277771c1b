# SPDX-License-Identifier: Apache-2.0
"""`python -m checkpoint ls|verify|prune URI`: look at a store of checkpoints, check it, thin it out. Free of torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime

from rich.console import Console
from rich.table import Table

from checkpoint.api import CatalogueEntry, CheckpointError, CheckpointRef, EntryState, open_catalogue
from checkpoint.catalogue import Catalogue
from checkpoint.lineage import expendable, folder_of

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_COLUMNS = ("step", "attempt", "time", "size", "health", "state", "whole", "folder")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 well, 1 damage found, 2 it could not be done."""
    options = _parser().parse_args(arguments)
    try:
        command: Callable[[Catalogue, argparse.Namespace], int] = options.command
        return command(open_catalogue(options.uri), options)
    except (CheckpointError, OSError) as error:
        print(f"checkpoint: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m checkpoint", description="The catalogue of checkpoints in a store."
    )
    commands = parser.add_subparsers(required=True, metavar="ls|verify|prune")
    summaries = {
        "ls": ("list every checkpoint folder", _ls),
        "verify": ("read every byte and name each damaged file; exit 1 when there is one", _verify),
        "prune": ("delete all but the newest, and those that a newer attempt has cut off", _prune),
    }
    for name, (summary, command) in summaries.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.add_argument("uri", metavar="URI", help="path or file:// URI of the checkpoints' folder")
        sub.add_argument("--format", choices=("text", "json"), default="text")
        sub.set_defaults(command=command)
        if name == "verify":
            sub.add_argument("--step", type=int, help="only the checkpoints of this step")
        if name == "prune":
            sub.add_argument("--keep", type=int, required=True, metavar="N", help="how many visible ones stay")
            sub.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    return parser


def _ls(catalogue: Catalogue, options: argparse.Namespace) -> int:
    entries = catalogue.all_entries()
    if options.format == "json":
        print(json.dumps([_as_json(entry) for entry in entries], indent=1))
        return 0
    rows = [_as_row(entry) for entry in entries]
    console = Console()
    if not rows:
        console.print(f"no checkpoints in {catalogue.location}", markup=False, soft_wrap=True)
    elif console.is_terminal:
        table = Table(*_COLUMNS, box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for row in (_COLUMNS, *rows):
            print("\t".join(row))
    return 0


def _verify(catalogue: Catalogue, options: argparse.Namespace) -> int:
    committed = (EntryState.VISIBLE, EntryState.INVISIBLE)
    refs = [entry.ref for entry in catalogue.all_entries() if entry.ref and entry.state in committed]
    report = []
    for ref in refs:
        if options.step is None or ref.step == options.step:
            damage = catalogue.verify(ref)
            report.append({**_name(ref), "damaged": [{"file": each.name, "why": each.why} for each in damage]})
            if options.format == "text":
                print(f"{folder_of(ref)}: {'damaged' if damage else 'whole'}", flush=True)
                for each in damage:
                    print(f"  {each}", flush=True)
    if options.format == "json":
        print(json.dumps(report, indent=1))
    elif not report:
        print(f"no such committed checkpoint in {catalogue.location}")
    return 1 if any(each["damaged"] for each in report) else 0


def _prune(catalogue: Catalogue, options: argparse.Namespace) -> int:
    if options.keep < 1:
        raise CheckpointError(f"--keep {options.keep}: at least one must stay")
    doomed = [each.ref for each in expendable(catalogue.committed(), keep=options.keep)] + catalogue.cut_off()
    for ref in doomed:
        if not options.dry_run:
            catalogue.delete(ref)
        if options.format == "text":
            print(f"{'would delete' if options.dry_run else 'deleted'} {folder_of(ref)}", flush=True)
    if options.format == "json":
        print(json.dumps({"dry_run": options.dry_run, "deleted": [_name(ref) for ref in doomed]}, indent=1))
    return 0


def _name(ref: CheckpointRef) -> dict[str, object]:
    return {"step": ref.step, "attempt": ref.attempt, "folder": folder_of(ref)}


def _as_json(entry: CatalogueEntry) -> dict[str, object]:
    known = entry.committed
    return {
        "step": entry.ref.step if entry.ref else None,
        "attempt": entry.ref.attempt if entry.ref else None,
        "folder": entry.folder,
        "state": entry.state.value,
        "whole": entry.is_whole,
        "bytes": entry.bytes,
        "at": known.at if known else None,
        "position": known.position if known else None,
        "skipped": [list(each) for each in known.skipped] if known else [],
        "healthy": known.healthy if known else None,
        "world_size": known.world_size if known else None,
    }


def _as_row(entry: CatalogueEntry) -> tuple[str, ...]:
    known = entry.committed
    health = {True: "healthy", False: "unhealthy", None: "-"}[known.healthy if known else None]
    when = datetime.fromtimestamp(known.at).astimezone().isoformat(" ", "seconds") if known else "-"
    return (
        str(entry.ref.step) if entry.ref else "-",
        str(entry.ref.attempt) if entry.ref else "-",
        when,
        readable_size(entry.bytes),
        health,
        entry.state.value,
        "yes" if entry.is_whole else "no",
        entry.folder,
    )


def readable_size(size: float) -> str:
    """A number of bytes with a binary unit, as `1.5 GiB`."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


if __name__ == "__main__":
    sys.exit(main())
