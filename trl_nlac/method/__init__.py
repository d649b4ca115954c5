# SPDX-License-Identifier: Apache-2.0

"""The method of the paper: roles, critic, Bellman backup, refinement, losses and target weights."""
