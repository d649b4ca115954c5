# SPDX-License-Identifier: Apache-2.0

"""Messages, actions and tokens."""
