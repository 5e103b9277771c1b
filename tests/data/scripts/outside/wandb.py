# SPDX-License-Identifier: Apache-2.0
"""Stands in for Weights & Biases while its server is away: works offline only, as the real one does."""

import os


class CommError(Exception):
    """Shows in a traceback as the real one."""

    __module__ = "wandb.errors"


def init(project: str) -> None:
    if os.environ.get("WANDB_MODE") != "offline":
        raise CommError(f"Run initialization of {project} has timed out after 90.0 sec. Is the server away?")
