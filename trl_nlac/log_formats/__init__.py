# SPDX-License-Identifier: Apache-2.0

"""Readers of logs that others wrote, and of what this package writes itself."""
