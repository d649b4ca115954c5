# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Makes tests faster, and the same wherever they are started, without a change to what they test."""

import gc
import importlib.metadata
import signal
from functools import cache


# Accelerate reads it at each call of its `is_..._available`, some thirty times in a training step.
importlib.metadata.metadata = cache(importlib.metadata.metadata)

# A shell that starts the tests in the background has processes ignore it, also those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave out of garbage collection what was imported: each training begins with one, of 0.8 seconds otherwise."""
    gc.collect()
    gc.freeze()
