# SPDX-License-Identifier: Apache-2.0

"""Sampling tokens: with transformers, with vLLM, or from a server."""
