# SPDX-License-Identifier: Apache-2.0
"""Supervises long pretraining runs."""

__version__ = "0.1.0"
