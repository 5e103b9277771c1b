# SPDX-License-Identifier: Apache-2.0
"""What a save costs training, beside PyTorch's own ways to save, in one run on the same state.

The state is about 1 GiB of fp32 tensors in 300 pieces, as of parameters and Adam's moments, sharded over one and two
gloo ranks. All ways take turns, `SAVES` rounds. Stall: how long the call holds the caller. Lost: all training time that
a save costs until it is committed, the stall and the slower steps. Peers have their best stagers (kept buffers, in
shared memory for the process mode), two writing threads and a process group of their own.

The bars: the median stall, and the stall of the very first save, are at most 1.15 times a plain copy by one thread in
the same run; the time lost is below the best peer's; bytes a second to the disk, checksum and commit included, are at
least 0.9 of what direct sequential writes reach.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import measuring
from benchmarks.measuring import ROOT, Bar
from checkpoint import Checkpointer

SAVES = 20
TENSORS = 300
SIZE_MIB = 1024
WRITES = 5
BLOCK_BYTES = 16 << 20
STALL_BAR = 1.15
DISK_BAR = 0.9
MEMCPY, OURS = "memcpy, one thread", "ours"
COLUMNS = (
    "way to save",
    "ranks",
    "first stall s",
    "stall s",
    "least",
    "committed after s",
    "lost s a save",
    "lost s in all",
)


def launch(folder: Path, ranks: int, size_mib: int, saves: int) -> dict[str, Any]:
    """Run the ranks; what rank 0 measured."""
    output = folder / f"ranks-{ranks}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "benchmarks.checkpoint_rank", str(folder / str(ranks))]
    command += [str(size_mib), str(TENSORS), str(saves), str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    return dict(json.loads(output.read_text()))


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


def bars_of(ranks: int, samples: dict[str, list[list[float]]]) -> list[Bar]:
    """What is claimed of one number of ranks."""
    stalls = {name: [each[0] for each in found] for name, found in samples.items()}
    lost = {name: sum(each[2] for each in found) for name, found in samples.items()}
    copy_s = measuring.median(stalls[MEMCPY])
    best = min(value for name, value in lost.items() if name not in (MEMCPY, OURS))
    return [
        Bar(f"stall over memcpy, {ranks} ranks", measuring.median(stalls[OURS]) / copy_s, STALL_BAR, "times"),
        Bar(f"first stall over memcpy, {ranks} ranks", stalls[OURS][0] / copy_s, STALL_BAR, "times"),
        Bar(f"time lost over the best peer's, {ranks} ranks", lost[OURS] / best, 1.0, "times"),
    ]


def main() -> int:
    """Measure; the exit code."""
    parser = measuring.options(__doc__, "checkpoint_engine")
    parser.add_argument("--size-mib", type=int, default=SIZE_MIB)
    parser.add_argument("--saves", type=int, default=SAVES)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to write to")
    chosen = parser.parse_args()
    began = measuring.place()
    rows, bars, found = [], [], {}
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        for ranks in (1, 2):
            measured = launch(folder, ranks, chosen.size_mib, chosen.saves)
            samples = measured["samples"]
            bars += bars_of(ranks, samples)
            for way, each in samples.items():
                stall, ended, lost = ([one[i] for one in each] for i in range(3))
                middle = measuring.median
                rows.append((way, ranks, stall[0], middle(stall), min(stall), middle(ended), middle(lost), sum(lost)))
                found[f"{way}, {ranks} ranks"] = {
                    "first_stall_s": stall[0],
                    "stall_s": measuring.spread(stall),
                    "committed_after_s": measuring.spread(ended),
                    "lost_s": measuring.spread(lost),
                    "lost_in_all_s": sum(lost),
                }
            found[f"skipped, {ranks} ranks"] = measured["skipped"]
        direct, ours = direct_rate(folder, chosen.size_mib << 20), our_rate(folder, chosen.size_mib)
    measuring.show(COLUMNS, rows)
    print(f"to the disk: ours {ours / 2**30:.2f} GiB/s, direct writes {direct / 2**30:.2f} GiB/s")
    bars.append(Bar("direct writes' rate over ours", direct / ours, 1 / DISK_BAR, "times"))
    parameters = {"size_mib": chosen.size_mib, "tensors": TENSORS, "saves": chosen.saves}
    rates = {"direct_bytes_per_s": direct, "our_bytes_per_s": ours}
    return measuring.conclude(began, chosen.output, parameters, {"ways": found, **rates}, bars)


if __name__ == "__main__":
    sys.exit(main())
