# SPDX-License-Identifier: Apache-2.0
"""One script a claim; each checks its claim before it prints and writes its table to `results/`."""
