# SPDX-License-Identifier: Apache-2.0
"""`python -m supervisor`: the command line where its script is not installed."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # `python -m` looks first in the working folder, where a script's modules may have names of ours or of Python's.
    sys.path.append(sys.path.pop(0))

from supervisor.cli import main

if __name__ == "__main__":
    sys.exit(main())
