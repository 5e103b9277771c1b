# SPDX-License-Identifier: Apache-2.0
"""Reports its steps to an outside service, which cannot be reached; the wandb here is a stand-in."""

import time

import wandb  # type: ignore[import-not-found]  # the stand-in beside this script

from supervisor.training import supervise


def main() -> None:
    run = supervise()
    wandb.init(project="counting")
    for step in range(1, 51):
        time.sleep(0.02)
        run.report(step, loss=1.0)


if __name__ == "__main__":
    main()
