# SPDX-License-Identifier: Apache-2.0
"""Starts ranks as torchrun does, without torch: `launcher.py RANKS PROGRAM...`; ends when one fails or all are done.

With EAGER=1 it waits for a rank in the instant of its end, so that nobody else can read how it ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time


def main() -> int:
    count, program = int(sys.argv[1]), sys.argv[2:]
    ranks = [
        subprocess.Popen(
            [sys.executable, *program],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(count),
                "WORLD_SIZE": str(count),
            },
            start_new_session=True,
        )
        for rank in range(count)
    ]
    if os.environ.get("EAGER") == "1":
        return max(abs(os.waitstatus_to_exitcode(os.wait()[1])) for _ in ranks)
    while True:
        codes = [rank.poll() for rank in ranks]
        if all(code == 0 for code in codes):
            return 0
        if any(code not in (None, 0) for code in codes):
            return 1
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
