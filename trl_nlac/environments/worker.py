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

"""One environment instance in its own thread."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..event_loop import finish
from .base import TextEnvironment


logger = logging.getLogger(__name__)


class EnvironmentWorker:
    """
    One environment instance in its own thread: it is made, played and closed there, as some libraries demand. The
    thread is a daemon, so that an instance that hangs does not keep the program from ending.

    Args:
        name (`str`):
            Name of the factory that the instance comes from.
        make (`Callable[[], TextEnvironment]`):
            Makes the instance; called in the thread before the first job.

    Attributes:
        environment ([`TextEnvironment`], *optional*):
            The instance, from when it is made until it is closed.
    """

    def __init__(self, name: str, make: Callable[[], TextEnvironment]):
        self.name = name
        self._make = make
        self.environment: TextEnvironment | None = None
        self._jobs: queue.SimpleQueue[tuple[Callable, Future] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"environment {name}".strip())
        self._thread.start()

    def submit(self, job: Callable[[TextEnvironment], Any]) -> Future:
        """Run `job`, which can be asynchronous, on the instance and return its future result."""
        future: Future = Future()
        self._jobs.put((job, future))
        return future

    def stop(self) -> None:
        """Close the instance once its current job is done. No job can follow."""
        self._jobs.put(None)

    def kill(self) -> threading.Thread:
        """Close an instance that hangs, from another thread, and return that thread."""
        thread = threading.Thread(target=self._close, daemon=True)
        thread.start()
        return thread

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the thread to end and return whether it did."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, future = entry
            try:
                if self.environment is None:
                    self.environment = self._make()
                result = finish(job(self.environment))
            except BaseException as error:  # an environment that calls sys.exit must not end its thread silently
                future.set_exception(error)
            else:
                future.set_result(result)
            del entry, job, future  # an idle worker keeps no references
        self._close()

    def _close(self) -> None:
        environment, self.environment = self.environment, None
        if environment is None:
            return
        try:
            finish(environment.close())
        except Exception:
            logger.warning("An environment could not be closed.", exc_info=True)
