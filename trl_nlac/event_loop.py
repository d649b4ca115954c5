# SPDX-License-Identifier: Apache-2.0

"""Event loops in threads of their own, for everything asynchronous."""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Hashable
from concurrent import futures
from contextvars import ContextVar, copy_context
from typing import Any
from weakref import WeakKeyDictionary

from .terminal import printable_traceback


logger = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0  # within which a loop that is not blocked runs a callback

_owner: ContextVar[Hashable] = ContextVar("owner", default=None)
_owners: WeakKeyDictionary[asyncio.Task | threading.Thread, Hashable] = WeakKeyDictionary()
_owners_lock = threading.Lock()
_runner: ContextVar[Callable[[Coroutine], Any] | None] = ContextVar("runner", default=None)


def finish(result: Any) -> Any:
    """Return `result`, or what a coroutine returns, in the one loop or that of this thread. Not for coroutines."""
    if inspect.iscoroutine(result):
        run = _runner.get() or _others.run
        return run(result)
    return result


def run_coroutines_with(run: Callable[[Coroutine], Any]) -> None:
    """Let `run` run the coroutines that the current thread finishes."""
    _runner.set(run)


def works_for(owner: Hashable) -> bool:
    """Whether a task or thread that a coroutine of an owner started still runs."""
    with _owners_lock:
        works = [work for work, other in _owners.items() if other is owner]
    return any(work.is_alive() if isinstance(work, threading.Thread) else not work.done() for work in works)


def _note_owner(work: asyncio.Task | threading.Thread) -> None:
    with _owners_lock:
        _owners[work] = _owner.get()


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine, **kwargs) -> asyncio.Task:
    task = asyncio.Task(coroutine, loop=loop, **kwargs)
    _note_owner(task)
    return task


class Withdrawn(Exception):
    """A coroutine was taken out of a blocked event loop before it began; it can run in another one."""


class Coroutines:
    """
    Run coroutines of several owners in one event loop, as TRL does, so that they can share locks and connections. A
    loop that is blocked is left behind: the coroutines that began stay there, the others run in a new one.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._loop: _Loop | None = None  # takes new coroutines
        self._calls: list[_Call] = []

    def run(self, coroutine: Coroutine, owner: Hashable = None) -> Any:
        """
        Run a coroutine and return its result. An owner runs one at a time. Raise `asyncio.CancelledError` if it was
        cancelled. Raise [`Withdrawn`] if its loop is blocked and it has not begun.
        """
        context = copy_context()
        context.run(_owner.set, owner)
        with self._lock:  # several threads can come at the same time and must get the same loop
            if self._loop is None or not self._loop.is_alive:  # as after a fork
                self._loop = _Loop()
            call = context.run(_Call, self._loop, coroutine)
            self._calls.append(call)
        try:
            value, error = call.future.result()
        except futures.CancelledError:
            if call.is_withdrawn:
                raise Withdrawn from None
            raise asyncio.CancelledError from None  # which `except Exception` does not catch
        finally:
            with self._lock:
                self._calls.remove(call)
                self._end_if_left(call.loop)
        if error is not None:
            raise error
        return value

    def cancel(self, owner: Hashable) -> bool:
        """End the wait for the coroutine of an owner, which its loop cancels. Return whether there was one."""
        call = self._call_of(owner)
        return call is not None and call.future.cancel()

    def blocker_of(self, owner: Hashable) -> Hashable:
        """What blocks the loop of an owner's coroutine: an owner, the loop where that is unknown, or `None`."""
        call = self._call_of(owner)
        return None if call is None or call.loop.answers() else call.loop.current_owner or call.loop

    def replace_blocked(self) -> None:
        """Leave a loop that is blocked behind."""
        with self._lock:
            loop = self._loop
        if loop is None or loop.answers():
            return
        with self._lock:
            if loop is self._loop:
                logger.warning("A coroutine blocks its event loop. The loop is left behind for a new one.")
                for call in self._calls:
                    if call.loop is loop:
                        call.withdraw()
                self._leave()

    def retire(self) -> None:
        """End the loop once its last coroutine has ended."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            self._end_if_left(loop)

    def _end_if_left(self, loop: "_Loop") -> None:
        if loop is not self._loop and all(call.loop is not loop for call in self._calls):
            loop.end()

    def _call_of(self, owner: Hashable) -> "_Call | None":
        with self._lock:
            return next((call for call in reversed(self._calls) if call.owner is owner), None)


class _Call:
    """A coroutine in a loop. It either begins or is withdrawn, whichever comes first."""

    def __init__(self, loop: "_Loop", coroutine: Coroutine):
        self.loop = loop
        self.owner = _owner.get()
        self.is_withdrawn = False
        self._claim = threading.Lock()
        self._coroutine = coroutine
        self.future = asyncio.run_coroutine_threadsafe(self._run(), loop.loop)

    def withdraw(self) -> None:
        if self._claim.acquire(blocking=False):
            self.is_withdrawn = True
            self.future.cancel()

    async def _run(self) -> tuple[Any, BaseException | None]:
        """Return the result or error: a loop would not survive SystemExit and KeyboardInterrupt as such."""
        if not self._claim.acquire(blocking=False):
            return None, None
        try:
            return await self._coroutine, None
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return None, error


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(_make_task)
        self.loop.set_default_executor(DaemonThreads())
        self._is_ended = False
        self._asked_at, self._answered = 0.0, threading.Event()
        self._answered.set()
        self._thread = threading.Thread(target=self._work, daemon=True, name="trl_nlac coroutines")
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def current_owner(self) -> Hashable:
        """Owner of the task that runs at this moment, if any does."""
        task = asyncio.current_task(self.loop)
        return None if task is None else _owners.get(task)

    def answers(self) -> bool:
        """Whether the loop runs callbacks, within `ANSWER_SECONDS` of the first that it did not."""
        if self._answered.is_set():
            self._asked_at, self._answered = time.monotonic(), threading.Event()
            try:
                self.loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # it has ended
                self._answered.set()
        return self._answered.wait(max(0.0, self._asked_at + ANSWER_SECONDS - time.monotonic()))

    def end(self) -> None:
        """Cancel the tasks that are left, and end. Call it once."""
        self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._is_ended = True
        self.loop.stop()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_ended:
            self._run_until_stopped()
        tasks, deadline = asyncio.all_tasks(self.loop), time.monotonic() + ANSWER_SECONDS
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks) and time.monotonic() < deadline:
            self.loop.call_later(0.01, self.loop.stop)
            self._run_until_stopped()
        self.loop.close()

    def _run_until_stopped(self) -> None:
        try:
            self.loop.run_forever()  # also ended by a coroutine that stops the loop or raises SystemExit
        except BaseException as error:
            logger.warning("A task of an event loop failed.\n%s", printable_traceback(error))


class DaemonThreads(futures.ThreadPoolExecutor):
    """Give each call a daemon thread of its own: one that hangs holds up neither others nor the program's end."""

    def submit(self, function, /, *args, **kwargs) -> futures.Future:
        future: futures.Future = futures.Future()
        thread = threading.Thread(target=_call, args=(future, function, args, kwargs), daemon=True)
        _note_owner(thread)
        thread.start()
        return future


def _call(future: futures.Future, function: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


_others = Coroutines()
