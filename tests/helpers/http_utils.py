# SPDX-License-Identifier: Apache-2.0

"""Common parts of fake servers with JSON requests."""

from benchmarks.chat_server import JSONHandler


__all__ = ["JSONHandler"]
