# SPDX-License-Identifier: Apache-2.0

"""How well the policy acts, and what its critic knows."""
