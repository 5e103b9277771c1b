# SPDX-License-Identifier: Apache-2.0
"""The node's eyes and hands; standard library only, so that it runs in the user's image."""
