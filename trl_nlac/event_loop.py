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

"""One event loop in its own thread, for everything asynchronous."""

import asyncio
import inspect
import threading
from functools import lru_cache
from typing import Any

from trl.trainer.utils import start_event_loop_in_daemon


_lock = threading.Lock()


def finish(result: Any) -> Any:
    """
    Return `result`; if it is a coroutine, run it and return its result. All coroutines run in one loop and can share
    locks and connections, as in TRL. Must not be called from a coroutine.
    """
    if inspect.iscoroutine(result):
        return asyncio.run_coroutine_threadsafe(result, _event_loop()).result()
    return result


def _event_loop() -> asyncio.AbstractEventLoop:
    with _lock:  # several threads can ask at the same time and must get the same loop
        return _start_event_loop()


@lru_cache(maxsize=1)
def _start_event_loop() -> asyncio.AbstractEventLoop:
    _, loop, is_ready = start_event_loop_in_daemon(name="trl_nlac")
    is_ready.wait()
    return loop
