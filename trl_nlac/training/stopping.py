# SPDX-License-Identifier: Apache-2.0

"""Stopping by a signal: Ctrl-C (SIGINT) and SIGTERM save a checkpoint first, and what is open is closed."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType


REPEAT_SECONDS = 0.5  # within which a signal is the last one again: launchers pass on what a terminal sends to all
_NOTE = (
    "\n{name}: training stops with a checkpoint at the end of the step under way, its rollout included. Another one "
    "stops it at once.\n"
)


def stop_at_once(number: int, frame: FrameType | None = None) -> None:
    """Handle a signal by an error, so that all `finally` run: `KeyboardInterrupt` for SIGINT, or `SystemExit`."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


class StopSignals:
    """
    Note the first SIGINT or SIGTERM, so that training can stop in order. The second one stops it at once. Several in
    quick succession are one, so that none of them ends what another has begun, such as a checkpoint.
    """

    def __init__(self):
        self.received = 0  # number of the signal, if there was one

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals in the main thread, the only one that can, but those that the program handles itself."""
        self.received = 0
        with _handled_by(self._note, signal.SIGINT, signal.SIGTERM):
            yield
        if self.received:  # after the last step
            stop_at_once(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = number
            # Python's own streams may be in the middle of a write.
            os.write(2, _NOTE.format(name=signal.Signals(number).name).encode())
        else:
            stop_at_once(number)


@contextmanager
def closing_on_sigterm() -> Iterator[None]:
    """End the program in order on SIGTERM, as Ctrl-C does, so that environments are closed."""
    with _handled_by(stop_at_once, signal.SIGTERM):
        yield


class _OncePerStorm:
    """Hands on a signal, if it is not one of several in quick succession."""

    def __init__(self, handle: Callable[[int, FrameType | None], None]):
        self.handle = handle
        self._last = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        last, self._last = self._last, time.monotonic()
        if self._last - last > REPEAT_SECONDS:
            self.handle(number, frame)


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    previous = {number: signal.getsignal(number) for number in numbers}
    replaced = [number for number, other in previous.items() if _is_default(other)]
    handler = _OncePerStorm(handle)
    for number in replaced:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, previous[number])


def _is_default(handler) -> bool:
    """Whether a handler ends the program as Python does, or is the one with which Ray replaces it in `ray.init`."""
    if isinstance(handler, FunctionType) and handler.__module__ == "ray._private.worker":
        return True
    if isinstance(handler, _OncePerStorm):
        return handler.handle is stop_at_once
    return handler in (signal.SIG_DFL, signal.default_int_handler)
