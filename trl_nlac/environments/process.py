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

"""An environment in a process of its own."""

import multiprocessing
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from ..event_loop import finish
from .base import EnvironmentFailure, Message, StepResult, TextEnvironment, describe_error


CLOSING_SECONDS = 5.0  # how long an environment has to close itself


class ProcessEnvironment(TextEnvironment):
    """
    Plays an environment in a process of its own, which is made and closed there: an environment that computes in
    Python then holds up neither the others nor training. What its methods raise is raised here. A process that dies
    is a failure of its environment.

    Args:
        make (`Callable[[], TextEnvironment]`):
            Makes the environment, in the process.
    """

    def __init__(self, make: Callable[[], TextEnvironment]):
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            # The server imports once what scripts would import in every process. vLLM is not to be forked.
            package = __name__.partition(".")[0]
            loaded = [name for name in sys.modules if name.startswith(f"{package}.") and "vllm" not in name]
            context.set_forkserver_preload([__name__, *loaded])
        self._connection, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end, cloudpickle.dumps(make)), daemon=True)
        self._process.start()
        other_end.close()  # so that the end of the process is seen
        self._calling = threading.Lock()

    def reset(self, **task) -> str | list[Message]:
        return self._call("reset", **task)

    def step(self, action: str) -> StepResult:
        return self._call("step", action)

    def final_reward(self) -> float:
        return self._call("final_reward")

    def close(self) -> None:
        """Close the environment and end its process; at once, if it is in a call."""
        if self._calling.acquire(blocking=False):
            try:
                self._connection.send_bytes(cloudpickle.dumps(None))
                self._process.join(CLOSING_SECONDS)
            except OSError:  # it is gone already
                pass
            finally:
                self._calling.release()
        self._process.kill()

    def _call(self, method: str, *args, **kwargs) -> Any:
        with self._calling:
            try:
                self._connection.send_bytes(cloudpickle.dumps((method, args, kwargs)))
                result, error, lines = cloudpickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError) as lost:
                self._process.join(CLOSING_SECONDS)
                raise EnvironmentFailure(
                    f"the process of the environment ended with the exit code {self._process.exitcode}"
                ) from lost
        if error is not None:
            raise error from _InProcess(lines)
        return result


class _InProcess(Exception):
    """The traceback of an error in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _serve(connection: Connection, pickled_make: bytes) -> None:
    """Make an environment and answer calls of its methods, until the last one or the end of the caller."""
    # Signals are for the trainer, which plays episodes to their end. SIGTERM gets a handler, which, unlike that it is
    # ignored, programs do not inherit that the environment starts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    random.seed()
    np.random.seed()  # otherwise all processes would draw the same numbers
    if torch := sys.modules.get("torch"):
        torch.seed()
    environment = None
    while True:
        try:
            request = cloudpickle.loads(connection.recv_bytes())
        except (EOFError, OSError):  # the caller is gone
            request = None
        if request is None:
            break
        method, args, kwargs = request
        try:
            if environment is None:
                environment = cloudpickle.loads(pickled_make)()
            answer = finish(_method(environment, method)(*args, **kwargs)), None, ""
        except BaseException as error:  # one that calls sys.exit is a failure like others
            answer = None, error, traceback.format_exc()
        try:
            connection.send_bytes(_pickled(answer))
        except OSError:
            break
    if environment is not None:
        finish(environment.close())


def _method(environment: TextEnvironment, name: str) -> Callable:
    return {"reset": environment.reset, "step": environment.step, "final_reward": environment.final_reward}[name]


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
