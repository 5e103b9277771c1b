# SPDX-License-Identifier: Apache-2.0
"""`python -m supervisor`: the command line where its script is not installed."""

from __future__ import annotations

import sys

from supervisor.cli import main

if __name__ == "__main__":
    sys.exit(main())
