# SPDX-License-Identifier: Apache-2.0
"""Asynchronous, verified checkpoints in the format of PyTorch distributed checkpoint."""
