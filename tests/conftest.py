# SPDX-License-Identifier: Apache-2.0
"""What several packages' tests need."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

# A busy machine is no fault of the code; speed is judged in benchmarks/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def leave_out(why: str) -> NoReturn:
    """This machine cannot run the test: say so at the end of the run; in CI that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}, and CI leaves nothing out")
    pytest.skip(why)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, which is soon full."""
    if os.geteuid() != 0:
        leave_out("mounting a small tmpfs needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
