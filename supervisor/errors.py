# SPDX-License-Identifier: Apache-2.0
"""The error of whatever a person asked for that cannot be done as asked.

The command line catches it, and the errors of the packages below, in one place.
"""

from __future__ import annotations


class UsageError(Exception):
    """The message names the thing, the value and the next step."""
