# SPDX-License-Identifier: Apache-2.0

"""What a run writes down."""
