# SPDX-License-Identifier: Apache-2.0
"""Bytes a second to a real S3 server on this machine: our upload of a slab, beside s3fs' own parallel upload.

Ours takes its checksum meanwhile, as every save does. Both send the same bytes with parts of the same size, in turns.
The server, its disk and the client share the machine. The bar: ours reaches at least 80 % of s3fs' rate.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import s3fs
import xxhash

from benchmarks.measuring import Bar, conclude, median, options, place, show, spread
from checkpoint.stores import open_store
from tests.system.services.s3 import S3Server

_PART_BYTES = 16 << 20


def _measure(server: S3Server, memory: mmap.mmap, rounds: int) -> dict[str, list[float]]:
    """Seconds of each upload by its way; each object is deleted before the next is put."""
    uri = server.make_bucket("bench")
    os.environ.update(server.environment)
    store = open_store(f"{uri}/ours")
    plain = s3fs.S3FileSystem(skip_instance_cache=True)
    length = len(memory)
    payload = bytes(memory)

    def ours() -> None:
        with memoryview(memory) as whole, ThreadPoolExecutor(1) as aside:
            checksum = aside.submit(xxhash.xxh3_128_hexdigest, whole)
            store.put_buffer("data", whole, length)
            checksum.result()

    def theirs() -> None:
        plain.pipe_file("bench/theirs/data", payload, chunksize=_PART_BYTES)

    ways: dict[str, Callable[[], None]] = {"ours": ours, "s3fs": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=bool(turn % 2)):
            began = time.monotonic()
            ways[name]()
            seconds[name].append(time.monotonic() - began)
            plain.rm_file(f"bench/{'ours' if name == 'ours' else 'theirs'}/data")
    return seconds


def main() -> int:
    parser = options(__doc__, "checkpoint_s3")
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=6, help="uploads of each way; the first warms up")
    chosen = parser.parse_args()
    began = place()
    length = chosen.mebibytes << 20
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, mmap.mmap(-1, length) as memory:
        for start in range(0, length, 1 << 20):
            memory[start : start + (1 << 20)] = os.urandom(1 << 20)
        with closing(S3Server(Path(folder) / "s3")) as server:
            seconds = _measure(server, memory, chosen.rounds)
    rates = {name: [chosen.mebibytes / each for each in taken[1:]] for name, taken in seconds.items()}
    show(
        ["MiB/s to S3", "median", "least", "most"],
        [[name, median(each), min(each), max(each)] for name, each in rates.items()],
    )
    ratio = median(rates["s3fs"]) / median(rates["ours"])
    bars = [Bar("s3fs' rate over ours", ratio, 1 / 0.8, "times")]
    found = {"mib_per_second": {name: spread(each) for name, each in rates.items()}}
    return conclude(began, chosen.output, {"mebibytes": chosen.mebibytes, "rounds": chosen.rounds}, found, bars)


if __name__ == "__main__":
    sys.exit(main())
