# SPDX-License-Identifier: Apache-2.0
"""The shell around the core: journal, effects, agents' port, status."""
