# SPDX-License-Identifier: Apache-2.0
"""Pure detectors of hangs and loss spikes."""
