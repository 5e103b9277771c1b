# SPDX-License-Identifier: Apache-2.0
"""What a training script calls; standard library only."""
