# SPDX-License-Identifier: Apache-2.0

"""A server with OpenAI's interfaces, for agents that others wrote."""
