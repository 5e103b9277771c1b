# SPDX-License-Identifier: Apache-2.0
"""The pure state machine of a run: events in, decisions out."""
