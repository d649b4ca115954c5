# SPDX-License-Identifier: Apache-2.0

"""Episodes: played, recorded, scored, and read from logs."""
