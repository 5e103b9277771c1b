# SPDX-License-Identifier: Apache-2.0
"""From logs and exit codes to one reason, one culprit and one action."""
