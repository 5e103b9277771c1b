# SPDX-License-Identifier: Apache-2.0
"""`python -m checkpoint ls|verify|prune|writer URI`: look at a store, check it, thin it out; free of torch.

`writer` is the process that ranks start to have their snapshots written; it imports no more than it must.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from checkpoint.api import CatalogueEntry, CheckpointError, CheckpointRef, DamagedFile, EntryState, open_catalogue
from checkpoint.catalogue import Catalogue
from checkpoint.held import held_here
from checkpoint.lineage import expendable, folder_of
from checkpoint.listing import (
    COLUMNS,
    foreign_as_json,
    foreign_as_row,
    held_as_json,
    held_as_row,
    own_as_json,
    own_as_row,
    snapshots_of,
)
from checkpoint.slab import memory_path

_EXIT_CODES = "exit codes: 0 well; 1 damage was found; 2 it could not be done (the last line says why), or wrong usage"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 well, 1 damage found, 2 it could not be done."""
    options = _parser().parse_args(arguments)
    try:
        if options.command is None:
            return _write(options)
        command: Callable[[Catalogue, argparse.Namespace], int] = options.command
        return command(_opened(options.uri), options)
    except (CheckpointError, OSError) as error:
        print(f"checkpoint: {error}", file=sys.stderr)
        return 2


def _opened(uri: str) -> Catalogue:
    """A store that is to be looked at is there; the library itself may begin with a folder that is not."""
    catalogue = open_catalogue(uri)
    if "://" not in catalogue.location and not Path(catalogue.location).is_dir():
        raise CheckpointError(f"{catalogue.location} is no folder; name the one in which the checkpoints lie")
    return catalogue


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m checkpoint", description="The catalogue of checkpoints in a store.", epilog=_EXIT_CODES
    )
    commands = parser.add_subparsers(required=True, metavar="ls|verify|prune|writer")
    summaries = {
        "ls": ("list every checkpoint: folders, those of other programs too, and what this node's memory holds", _ls),
        "verify": ("read every byte and name each damaged file; exit 1 when there is one", _verify),
        "prune": ("delete all but the newest, and those that a newer attempt has cut off", _prune),
    }
    for name, (summary, command) in summaries.items():
        sub = commands.add_parser(name, help=summary, description=summary, epilog=_EXIT_CODES)
        sub.add_argument("uri", metavar="URI", help="path or URI of the checkpoints' folder")
        sub.add_argument("--format", choices=("text", "json"), default="text")
        sub.set_defaults(command=command)
        if name == "verify":
            sub.add_argument("--step", type=int, help="only the checkpoints of this step")
        if name == "prune":
            sub.add_argument("--keep", type=int, required=True, metavar="N", help="how many visible ones stay")
            sub.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    writer = commands.add_parser("writer", help="write the snapshots of this node's ranks; started by the ranks")
    writer.add_argument("uri", metavar="URI", help="path or URI of the checkpoints' folder, as the ranks name it")
    writer.add_argument("--linger", type=float, default=30.0, metavar="S", help="how long to stay when ranks died")
    writer.add_argument("--detach", action="store_true", help="go on in the background, in a session of its own")
    writer.set_defaults(command=None)
    return parser


def _write(options: argparse.Namespace) -> int:
    from checkpoint import writer_process

    if options.detach and not writer_process.detach():
        return 0
    return writer_process.serve(options.uri, options.linger)


def _ls(catalogue: Catalogue, options: argparse.Namespace) -> int:
    own, foreign = catalogue.all_entries(), catalogue.foreign().entries()
    held = snapshots_of(held_here(memory_path(os.environ), catalogue.location))
    tier = _tier(catalogue)
    if options.format == "json":
        entries = [own_as_json(each, tier) for each in own] + [foreign_as_json(each, tier) for each in foreign]
        entries += [held_as_json(each) for each in held]
        print(json.dumps(entries, indent=1))
        return 0
    from rich.console import Console
    from rich.table import Table

    rows = [own_as_row(each, tier) for each in own] + [foreign_as_row(each, tier) for each in foreign]
    rows += [held_as_row(each) for each in held]
    console = Console()
    if not rows:
        console.print(f"no checkpoints in {catalogue.location}", markup=False, soft_wrap=True)
    elif console.is_terminal:
        table = Table(*COLUMNS, box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for row in (COLUMNS, *rows):
            print("\t".join(row))
    return 0


def _verify(catalogue: Catalogue, options: argparse.Namespace) -> int:
    report = []
    for name, damage, is_foreign in _verified(catalogue, options.step):
        report.append({**name, "damaged": [{"file": each.name, "why": each.why} for each in damage]})
        if options.format == "text":
            whole = "whole, as far as its format tells" if is_foreign else "whole"
            print(f"{name['folder']}: {'damaged' if damage else whole}", flush=True)
            for each in damage:
                print(f"  {each}", flush=True)
    if not report and options.step is not None:
        raise CheckpointError(f"no committed checkpoint of step {options.step} in {catalogue.location}; see `ls`")
    if options.format == "json":
        print(json.dumps(report, indent=1))
    elif not report:
        print(f"no committed checkpoint in {catalogue.location}")
    return 1 if any(each["damaged"] for each in report) else 0


def _verified(
    catalogue: Catalogue, step: int | None
) -> Iterator[tuple[dict[str, object], Sequence[DamagedFile], bool]]:
    """Name, damage and foreignness of each checkpoint, with a progress bar where a person looks on."""
    committed = (EntryState.VISIBLE, EntryState.INVISIBLE)
    own = [each for each in catalogue.all_entries() if each.ref and each.state in committed]
    own = [each for each in own if step is None or (each.ref and each.ref.step == step)]
    with _progress(own) as told:
        for entry in own:
            assert entry.ref is not None
            yield _name(entry.ref), catalogue.verify(entry.ref, told=told), False
    foreign = catalogue.foreign()
    for each in foreign.entries():
        if step is None or each.step == step:
            looked_at = foreign.verified(each.folder) or each
            name: dict[str, object] = {"step": each.step, "attempt": None, "folder": each.folder or catalogue.location}
            yield name, looked_at.faults, True


@contextmanager
def _progress(entries: Sequence[CatalogueEntry]) -> Iterator[Callable[[int], None] | None]:
    """Takes the bytes that were read; None where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal or not entries:
        yield None
        return
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(each.bytes for each in entries))

        def told(size: int) -> None:
            progress.advance(task, size)

        yield told


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
    elif not doomed and (kind := catalogue.foreign().format()) and not catalogue.all_entries():
        print(f"nothing deleted: the checkpoints of {kind.value} are for that program to prune")
    return 0


def _tier(catalogue: Catalogue) -> str:
    """Where the store is: its scheme, `file` for a file system."""
    scheme, separator, _ = catalogue.location.partition("://")
    return scheme if separator else "file"


def _name(ref: CheckpointRef) -> dict[str, object]:
    return {"step": ref.step, "attempt": ref.attempt, "folder": folder_of(ref)}


if __name__ == "__main__":
    sys.exit(main())
