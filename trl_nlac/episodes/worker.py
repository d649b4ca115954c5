# SPDX-License-Identifier: Apache-2.0

"""One environment instance in its own thread."""

import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from ..event_loop import Coroutines, Withdrawn, finish, run_coroutines_with, works_for
from ..terminal import printable_traceback
from .text_environment import TextEnvironment


logger = logging.getLogger(__name__)

SHARED_LOOP = Coroutines()
CANCELLING_SECONDS = 1.0  # how long a cancelled coroutine's thread has to close the environment itself


class EnvironmentWorker:
    """
    One environment instance in its own thread: it is made, played and closed there, as some libraries demand. The
    thread is a daemon, so that an instance that hangs does not keep the program from ending. Where it `has_own_loop`,
    its coroutines have an event loop of their own, in place of the one that all instances share; this can be changed.
    """

    def __init__(self, name: str, make: Callable[[], TextEnvironment], has_own_loop: bool = False):
        self.name = name
        self.has_own_loop = has_own_loop
        self.environment: TextEnvironment | None = None  # from when it is made until it is closed
        self._make = make
        self._own_loop = Coroutines()
        self._closing = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Callable, Future] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"environment {name}".strip())
        self._thread.start()

    def submit(self, job: Callable[[TextEnvironment], Any]) -> Future:
        """Run `job`, which can be asynchronous, on the instance and return its future result."""
        future: Future = Future()
        self._jobs.put((job, future))
        return future

    def stop(self) -> threading.Thread:
        """Close the instance once its current job is done. No job can follow. Return the thread that closes it."""
        self._jobs.put(None)
        return self._thread

    @property
    def blocker(self) -> Any:
        """What blocks the event loop that all share while its coroutine is there, perhaps itself, or `None`."""
        return SHARED_LOOP.blocker_of(self)

    @property
    def is_left_behind(self) -> bool:
        """Whether something that the instance started still runs."""
        return self._thread.is_alive() or works_for(self)

    def kill(self) -> threading.Thread:
        """Cancel the coroutine of an instance that hangs, and close it. Return the thread that does so at last."""
        is_cancelled = SHARED_LOOP.cancel(self) or self._own_loop.cancel(self)
        SHARED_LOOP.replace_blocked()
        seconds = CANCELLING_SECONDS if is_cancelled else 0.0
        thread = threading.Thread(target=self._close_after, args=(seconds,), daemon=True)
        thread.start()
        return thread

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the thread to end and return whether it did."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        run_coroutines_with(self._run)
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

    def _run(self, coroutine: Coroutine) -> Any:
        while True:
            try:
                return (self._own_loop if self.has_own_loop else SHARED_LOOP).run(coroutine, owner=self)
            except Withdrawn:
                continue

    def _close_after(self, seconds: float) -> None:
        self._own_loop.replace_blocked()
        self.wait(seconds)
        run_coroutines_with(self._run)
        self._close()

    def _close(self) -> None:
        with self._closing:  # the second thread waits until the first has closed it
            environment, self.environment = self.environment, None
            try:
                if environment is not None:
                    finish(environment.close())
            except BaseException as error:  # see above
                logger.warning("An environment could not be closed.\n%s", printable_traceback(error))
        self._own_loop.retire()
