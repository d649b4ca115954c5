# SPDX-License-Identifier: Apache-2.0

"""Environments in other processes: each in one of its own on this machine, or in one of a Ray cluster."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from ..event_loop import finish
from .text_environment import EnvironmentFailure, Message, StepResult, TextEnvironment, describe_error


CLOSING_SECONDS = 5.0  # how long an environment has to close itself
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RemoteEnvironment(TextEnvironment):
    """Plays an environment in another process, by a [`Host`]. A process that dies is a failure of its environment."""

    def __init__(self):
        self._calling = threading.Lock()

    def reset(self, **task) -> str | list[Message]:
        return self._call("reset", **task)

    def step(self, action: str) -> StepResult:
        return self._call("step", action)

    def final_reward(self) -> float:
        return self._call("final_reward")

    def close(self) -> None:
        """Close the environment and end its process. If it is in a call, it is closed from another thread there."""
        is_free = self._calling.acquire(blocking=False)
        try:
            self._close_host(in_call=not is_free)
        finally:
            if is_free:
                self._calling.release()
            self._kill_host()

    @abstractmethod
    def _ask_host(self, request: bytes) -> bytes:
        """Return the host's answer. If its process has ended, raise an [`EnvironmentFailure`]."""

    @abstractmethod
    def _close_host(self, in_call: bool) -> None:
        """Let the host, which may be in a call or gone, close the environment, for up to `CLOSING_SECONDS`."""

    @abstractmethod
    def _kill_host(self) -> None:
        """End the process of the host."""

    def _call(self, method: str, /, *args, **kwargs) -> Any:
        with self._calling:
            answer = self._ask_host(cloudpickle.dumps((method, args, kwargs)))
        result, error, lines = cloudpickle.loads(answer)
        if error is not None:
            raise error from _InProcess(lines)
        return result


class ProcessEnvironment(RemoteEnvironment):
    """Plays an environment in a process of its own: one that computes in Python then holds up nobody else."""

    def __init__(self, make: Callable[[], TextEnvironment]):
        super().__init__()
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            # The server imports once what scripts would import in every process. vLLM is not to be forked.
            package = __name__.partition(".")[0]
            names = list(sys.modules)  # at once, as other threads import
            loaded = [name for name in names if name.startswith(f"{package}.") and "vllm" not in name]
            context.set_forkserver_preload([__name__, *loaded])
        self._connection, other_end = context.Pipe()
        closing, self._closing = context.Pipe(duplex=False)  # for one that is in a call
        arguments = (other_end, closing, cloudpickle.dumps(make))
        # Daemons could have no processes of their own. The pool closes this one before Python waits for it.
        self._process = context.Process(target=_serve, args=arguments, daemon=False)
        self._process.start()
        for end in (other_end, closing):
            end.close()  # so that the end of the process is seen

    def _ask_host(self, request: bytes) -> bytes:
        try:
            self._connection.send_bytes(request)
            return self._connection.recv_bytes()
        except (EOFError, OSError) as lost:
            self._process.join(CLOSING_SECONDS)
            raise EnvironmentFailure(
                f"the process of the environment ended with the exit code {self._process.exitcode}"
            ) from lost

    def _close_host(self, in_call: bool) -> None:
        connection = self._closing if in_call else self._connection
        try:
            connection.send_bytes(cloudpickle.dumps(None))
            self._process.join(CLOSING_SECONDS)
        except OSError:
            pass

    def _kill_host(self) -> None:
        self._process.kill()


class _InProcess(Exception):
    """The traceback of an error in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Host:
    """Makes an environment, by a function that `cloudpickle` has pickled, at its first call, and answers calls."""

    def __init__(self, pickled_make: bytes):
        random.seed()
        np.random.seed()  # otherwise all processes would draw the same numbers
        if torch := sys.modules.get("torch"):
            torch.seed()
        self._pickled_make = pickled_make
        self._environment: TextEnvironment | None = None

    def answer(self, request: bytes) -> bytes:
        """Call a method, and return what it returned, or its error and the lines of its traceback."""
        method, args, kwargs = cloudpickle.loads(request)
        try:
            if self._environment is None:
                self._environment = cloudpickle.loads(self._pickled_make)()
            own = self._environment
            called = {"reset": own.reset, "step": own.step, "final_reward": own.final_reward}[method]
            answer = finish(called(*args, **kwargs)), None, ""
        except BaseException as error:  # one that calls sys.exit is a failure like others
            answer = None, error, traceback.format_exc()
        return _pickled(answer)

    def close(self) -> None:
        """Close the environment, if it was made."""
        if self._environment is not None:
            finish(self._environment.close())


def _serve(connection: Connection, closing: Connection, pickled_make: bytes) -> None:
    """Let a host answer, until the last call, a message in `closing` or the end of the caller."""
    # Signals are for the trainer, which plays episodes to their end. Programs that the environment starts inherit that
    # a signal is ignored, but no handler.
    for number in _SIGNALS:
        signal.signal(number, lambda number, frame: None)
    # Forked processes would inherit the handler, and `multiprocessing` could not end them. One that is sent a signal
    # at once gets it when it has a handler of its own.
    hold, release = (partial(signal.pthread_sigmask, how, _SIGNALS) for how in (signal.SIG_BLOCK, signal.SIG_UNBLOCK))
    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=_obey_signals)
    threading.Thread(target=_end_with_caller, daemon=True).start()
    host = Host(pickled_make)
    threading.Thread(target=_close_in_call, args=(closing, host), daemon=True).start()
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, OSError):  # the caller is gone
            break
        if cloudpickle.loads(request) is None:
            break
        try:
            connection.send_bytes(host.answer(request))
        except OSError:
            break
    host.close()


def _obey_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _close_in_call(closing: Connection, host: Host) -> None:
    """Close the environment and end this process, although it is in a call, as soon as the caller says so."""
    try:
        closing.recv_bytes()
    except (EOFError, OSError):  # the caller is gone
        return
    try:
        host.close()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _end_with_caller() -> None:
    """End this process after the caller, also if a call hangs: the environment has some seconds to close itself."""
    multiprocessing.parent_process().join()
    time.sleep(CLOSING_SECONDS)
    os._exit(1)


def _pickled(answer: tuple[Any, BaseException | None, str]) -> bytes:
    """Pickle a result, or an error; one that cannot be pickled is an error that says so."""
    result, error, lines = answer
    try:
        pickled = cloudpickle.dumps(answer)
        if error is not None:
            cloudpickle.loads(pickled)  # which many errors do not survive
        return pickled
    except Exception as reason:
        what = type(result).__name__ if error is None else f"{type(error).__name__}: {describe_error(error)}"
        failure = EnvironmentFailure(f"{what} (it could not leave the process: {describe_error(reason)})")
        return cloudpickle.dumps((None, failure, lines))
