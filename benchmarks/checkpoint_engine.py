# SPDX-License-Identifier: Apache-2.0
"""What a save costs training, beside PyTorch's own ways to save, in one run on the same state.

The state is about 1 GiB of fp32 tensors in 300 pieces, as of parameters and Adam's moments, sharded over one and two
gloo ranks. All ways take turns, `SAVES` rounds. Stall: how long the call holds the caller. Lost: all training time that
a save costs until it is committed, the stall and the slower steps. Peers have their best stagers (kept buffers, in
shared memory for the process mode), two writing threads and a process group of their own. DLRover's flash checkpoint
needs its own launcher, and so has launches of its own, in which ours and the plain copy take turns with it again; each
ratio is of one launch.

The bars: the median stall, and the stall of the very first save, are at most 1.15 times a plain copy by one thread in
the same launch. A launch has one first save, so that one is the median over all launches, for which more are made
without a peer; the time lost is below the best peer's, and below DLRover's; bytes a second to the disk, checksum and
commit included, are at least 0.9 of what direct sequential writes reach.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import flash_checkpoint, measuring
from benchmarks.checkpoint_rank import DLROVER, MEMCPY, NOBODY, OURS, TORCH
from benchmarks.measuring import ROOT, Bar
from checkpoint import Checkpointer

SAVES = 20
FIRST_SAVES = 5
TENSORS = 300
SIZE_MIB = 1024
WRITES = 5
BLOCK_BYTES = 16 << 20
STALL_BAR = 1.15
DISK_BAR = 0.9
RANKS = (1, 2)
COLUMNS = (
    "way to save",
    "ranks",
    "beside",
    "first stall s",
    "stall s",
    "least",
    "committed after s",
    "lost s a save",
    "lost s in all",
)


@dataclass(frozen=True, slots=True)
class Launch:
    """Ways that took turns in the same processes; a sample is the stall, the time to the commit and the time lost."""

    ranks: int
    peers: str
    samples: dict[str, list[list[float]]]
    skipped: int

    def medians(self, way: str) -> float:
        """Of the stalls; seconds."""
        return measuring.median([each[0] for each in self.samples[way]])

    def lost(self, way: str) -> float:
        """Seconds in all."""
        return sum(each[2] for each in self.samples[way])


def launch(
    folder: Path, ranks: int, size_mib: int, saves: int, dlrover: Path | None = None, peers: str = TORCH
) -> Launch:
    """Run the ranks under torchrun, or with a Python that has DLRover under its launcher."""
    peers = DLROVER if dlrover else peers
    name = f"{peers}-{ranks}"
    output = folder / f"{name}.json"
    module = ["benchmarks.checkpoint_rank", str(folder / name), str(size_mib), str(TENSORS), str(saves)]
    module += [str(output), peers]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if dlrover:
        flash_checkpoint.run_ranks(dlrover, ranks, module, environment, folder / f"{name}.log")
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        subprocess.run([*command, "-m", *module], check=True, cwd=ROOT, env=environment)
    return Launch(ranks, peers, **json.loads(output.read_text()))


def direct_rate(folder: Path, size: int) -> float:
    """Bytes a second of direct sequential writes of one thread, durable; the best of some files."""
    payload = memoryview(mmap.mmap(-1, size))
    payload[:] = os.urandom(1 << 20) * (size >> 20)
    best = 0.0
    for index in range(WRITES):
        began = time.perf_counter()
        descriptor = os.open(folder / f"direct-{index}", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        for start in range(0, size, BLOCK_BYTES):
            os.pwrite(descriptor, payload[start : start + BLOCK_BYTES], start)
        os.fsync(descriptor)
        os.close(descriptor)
        best = max(best, size / (time.perf_counter() - began))
        (folder / f"direct-{index}").unlink()
    return best


def our_rate(folder: Path, size_mib: int) -> float:
    """Bytes a second from the hand-in of a save to its commit, nothing else running; the best of some saves."""
    state = {"tensors": [torch.randn(size_mib * (1 << 18) // TENSORS) for _ in range(TENSORS)]}
    os.environ["CHECKPOINT_EVENTS"] = str(folder / "events")
    with Checkpointer(folder / "rate", keep=1) as checkpointer:
        checkpointer.restore(state)
        for step in range(1, WRITES + 2):
            checkpointer.save(step, state, wait=True)
            time.sleep(0.5)
    facts = map(json.loads, (folder / "events.rank-0.jsonl").read_text().splitlines())
    return max(float(fact["bytes"] / fact["seconds"]) for fact in facts if fact["event"] == "committed")


def bars_of(measured: Launch) -> list[Bar]:
    """What is claimed of one launch."""
    best = min(measured.lost(way) for way in measured.samples if way not in (MEMCPY, OURS))
    copy_s = measured.medians(MEMCPY)
    told = f"{measured.ranks} ranks, beside {measured.peers}"
    return [
        Bar(f"stall over memcpy, {told}", measured.medians(OURS) / copy_s, STALL_BAR, "times"),
        Bar(f"time lost over the best peer's, {told}", measured.lost(OURS) / best, 1.0, "times"),
    ]


def first_stalls(launches: Sequence[Launch], ranks: int) -> list[float]:
    """The stall of the first save of each launch, in plain copies of the same launch."""
    alike = [each for each in launches if each.ranks == ranks]
    return [each.samples[OURS][0][0] / each.medians(MEMCPY) for each in alike]


def first_bar(launches: Sequence[Launch], ranks: int) -> Bar:
    """What is claimed of first saves."""
    name = f"first stall over memcpy, {ranks} ranks"
    return Bar(name, measuring.median(first_stalls(launches, ranks)), STALL_BAR, "times")


def rows_of(measured: Launch) -> Iterator[measuring.Row]:
    """A launch's lines of the table."""
    for way, each in measured.samples.items():
        stall, ended, lost = ([one[i] for one in each] for i in range(3))
        head = (way, measured.ranks, measured.peers, stall[0])
        yield (*head, measuring.median(stall), min(stall), measuring.median(ended), measuring.median(lost), sum(lost))


def found_in(measured: Launch) -> dict[str, Any]:
    """A launch's part of the result."""
    told: dict[str, Any] = {"ranks": measured.ranks, "peers": measured.peers, "skipped": measured.skipped}
    for way, each in measured.samples.items():
        stall, ended, lost = ([one[i] for one in each] for i in range(3))
        told[way] = {
            "first_stall_s": stall[0],
            "stall_s": measuring.spread(stall),
            "committed_after_s": measuring.spread(ended),
            "lost_s": measuring.spread(lost),
            "lost_in_all_s": sum(lost),
        }
    return told


def measured_by(
    folder: Path, size_mib: int, saves: int, dlrover: Path | None, rank_counts: Sequence[int] = RANKS
) -> list[Launch]:
    """All launches."""
    found = []
    for ranks in rank_counts:
        found.append(launch(folder, ranks, size_mib, saves))
        if dlrover:
            found.append(launch(folder, ranks, size_mib, saves, dlrover))
    return found


def begun(folder: Path, size_mib: int, launches: int, rank_counts: Sequence[int] = RANKS) -> list[Launch]:
    """Launches that show little but the first save, without peers."""
    turns = [ranks for _ in range(launches) for ranks in rank_counts]
    found = []
    for ranks in turns:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            found.append(launch(Path(name), ranks, size_mib, saves=2, peers=NOBODY))
    return found


def main() -> int:
    """Measure; the exit code."""
    parser = measuring.options(__doc__, "checkpoint_engine")
    parser.add_argument("--size-mib", type=int, default=SIZE_MIB)
    parser.add_argument("--saves", type=int, default=SAVES)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to write to")
    parser.add_argument("--dlrover", type=Path, default=Path(sys.executable), help="a Python that has DLRover")
    chosen = parser.parse_args()
    began = measuring.place()
    versions = flash_checkpoint.versions(chosen.dlrover)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        launches = measured_by(folder, chosen.size_mib, chosen.saves, chosen.dlrover if versions else None)
        begins = begun(folder, chosen.size_mib, FIRST_SAVES)
        direct, ours = direct_rate(folder, chosen.size_mib << 20), our_rate(folder, chosen.size_mib)
    measuring.show(COLUMNS, [row for each in launches for row in rows_of(each)])
    print(f"to the disk: ours {ours / 2**30:.2f} GiB/s, direct writes {direct / 2**30:.2f} GiB/s")
    bars = [bar for each in launches for bar in bars_of(each)]
    bars += [first_bar([*launches, *begins], ranks) for ranks in RANKS]
    bars.append(Bar("direct writes' rate over ours", direct / ours, 1 / DISK_BAR, "times"))
    parameters = {"size_mib": chosen.size_mib, "tensors": TENSORS, "saves": chosen.saves, "torch": torch.__version__}
    parameters["dlrover"] = versions or "not installed"
    rates = {"direct_bytes_per_s": direct, "our_bytes_per_s": ours}
    found = {
        "launches": [found_in(each) for each in launches],
        "first_stalls": {str(ranks): measuring.spread(first_stalls([*launches, *begins], ranks)) for ranks in RANKS},
        **rates,
    }
    return measuring.conclude(began, chosen.output, parameters, found, bars)


if __name__ == "__main__":
    sys.exit(main())
