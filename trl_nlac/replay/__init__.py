# SPDX-License-Identifier: Apache-2.0

"""Prioritized replay."""

from .prioritized_replay import PrioritizedReplay
