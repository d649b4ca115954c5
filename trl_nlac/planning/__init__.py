# SPDX-License-Identifier: Apache-2.0

"""What a run will need, before it is started: memory and time by formula. Nothing is loaded."""
