# SPDX-License-Identifier: Apache-2.0

from benchmarks.chat_server import JSONHandler


__all__ = ["JSONHandler"]
