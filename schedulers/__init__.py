# SPDX-License-Identifier: Apache-2.0
"""Where attempts run: one port, several backends."""
