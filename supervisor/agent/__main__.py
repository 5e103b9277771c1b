# SPDX-License-Identifier: Apache-2.0
"""`python -m supervisor.agent --run-folder FOLDER --run NAME --node NODE`: one agent, started on each node.

A second agent for the same run and node ends at once: two would start an attempt twice.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # `python -m` looks first in the working folder, where a script's modules may have names of ours or of Python's.
    sys.path.append(sys.path.pop(0))

import argparse
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from supervisor.agent.folders import AgentFolders, FolderError
from supervisor.agent.node import NodeAgent
from supervisor.agent.record import RecordError

EXIT_UNUSABLE = 1
EXIT_SECOND = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 left in order, 1 cannot work here, 3 another agent does this job."""
    parser = argparse.ArgumentParser(prog="python -m supervisor.agent", description=__doc__)
    parser.add_argument("--run-folder", type=Path, required=True, help="folder of the run, with controller.json")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--node", required=True, help="name of this node in the allocation")
    parser.add_argument("--attach", type=int, metavar="PID", help="only watch this launcher, which runs already")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    where = AgentFolders(chosen.run_folder.absolute(), chosen.run, chosen.node)
    # The agent goes on when the terminal or session of who started it ends.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        where.make()
        with where.lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.stderr.write(f"another agent works for run {chosen.run} on {chosen.node}: {where.lock} is locked\n")
                return EXIT_SECOND
            NodeAgent(where, dict(os.environ), chosen.attach).run()
    except (FolderError, RecordError, OSError) as error:
        step = f"; mend that below {where.own}" if isinstance(error, OSError) else ""
        sys.stderr.write(f"agent of run {chosen.run} on {chosen.node}: {error}{step}\n")
        with contextlib.suppress(OSError):
            where.last_words.write_text(f"{error}{step}\n")
        return EXIT_UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
