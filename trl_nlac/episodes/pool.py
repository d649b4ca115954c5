# SPDX-License-Identifier: Apache-2.0

"""The pool of environment instances."""

import atexit
import inspect
import json
import multiprocessing.util  # noqa: F401 (its hook at the end of the program must come first, see `_close_pools`)
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from typing import Any

from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from ..terminal import shown
from .text_environment import EnvironmentFailure, Oracle, PlainEnvironment, TextEnvironment, describe_error, with_seed
from .trl_env import ToolEnvironment
from .worker import EnvironmentWorker


NO_TASK = {"prompt": [{"role": "user", "content": ""}]}  # dataset row for an environment that has its own data
CLOSING_SECONDS = 10.0  # how long to wait for environments to close
CLOSING_INTERVAL = 0.02  # s, after which one that waits for the place of another looks again
EnvironmentFactory = Callable[[], Any]
Mover = Callable[[Callable[[], TextEnvironment]], TextEnvironment]  # plays elsewhere what the function makes


_pools: "weakref.WeakSet[EnvironmentPool]" = weakref.WeakSet()


@atexit.register
def _close_pools() -> None:
    """
    Close all pools when the program ends. Hooks run last in, first out: this one runs before that of
    `multiprocessing`, imported above, which waits for processes to end. Those of `weakref.finalize` may run after it.
    """
    for pool in list(_pools):
        pool.close()


class Prompts:
    """The environment of tasks that are prompts: the first answer that calls no standalone tool ends the episode."""

    def reset(self, **task) -> None:
        """Start a task, to whose prompt nothing is added."""


class EnvironmentPool:
    """
    Environment instances, reused from episode to episode.

    A factory makes an instance: a [`gymnasium.Env`], a text environment if it has `step`, otherwise a TRL environment
    whose public methods are tools. With a dict of factories, the column `environment` of a task names one. With `None`
    and no tools, nothing can be played. Standalone `tools` go with a TRL environment, or without any.

    At most `max_instances` exist at the same time, with those that are closing: each of these counts for at most
    `CLOSING_SECONDS`. If it is `None`, each episode has one. A call of an instance, its factory included, counts as
    hanging after `timeout` seconds. Instances are played by `workers`: `"thread"`, each in a thread of this process,
    `"process"`, each in a process of its own, or `"ray"`, each in a process of a Ray cluster. The example is made in
    this process. Raise a `TimeoutError` if a factory takes longer than `timeout`. Raise a `TypeError` if a factory is
    not callable, or does not make an environment. Raise a `ValueError` if a factory fails, if there are tools for an
    environment that defines `step`, or if tools cannot be described, or if `workers` is `"ray"` and Ray is missing.
    """

    def __init__(
        self,
        environment_factory: EnvironmentFactory | dict[str, EnvironmentFactory] | None,
        tools: list[Callable] | None = None,
        max_instances: int | None = None,
        timeout: float | None = None,
        workers: str = "thread",
    ):
        if environment_factory is None and tools:
            environment_factory = Prompts
        self.max_instances = max_instances
        self.timeout = timeout
        self.last_failure = ""  # traceback of the last failure of an environment
        self._tools = tools
        self._move: Mover | None = _mover(workers)
        self._routed = isinstance(environment_factory, dict)
        if environment_factory is None:
            self._factories = {}
        else:
            self._factories = environment_factory if self._routed else {"": environment_factory}
        self._workers: set[EnvironmentWorker] = set()
        self._examples: set[EnvironmentWorker] = set()  # that do not play, as they are in this process
        self._idle: defaultdict[str, list[EnvironmentWorker]] = defaultdict(list)
        self._hanging: list[EnvironmentWorker] = []
        self._blocking: set[str] = set()  # names of environments that blocked the event loop that all share
        self._moved: set[EnvironmentWorker] = set()  # instances that came from that loop to one of their own
        self._workers_of: weakref.WeakValueDictionary[int, EnvironmentWorker] = weakref.WeakValueDictionary()  # by id
        self._closers: dict[threading.Thread, float] = {}  # that close discarded instances; when each stops counting
        weakref.finalize(self, _close, self._workers, self._closers).atexit = False
        _pools.add(self)
        examples: dict[str, TextEnvironment] = {}
        for name, factory in self._factories.items():
            if not callable(factory):
                raise TypeError(
                    "`environment_factory` must be a callable that returns an environment, or a dict of callables, "
                    f"got {shown(factory)}."
                )
            examples[name] = self._make_example(name)
        self.example = next(iter(examples.values()), None)  # an instance of the first
        # The ground truth, if there is a single environment and it has one.
        self.oracle: Oracle | None = None if self._routed or not examples else self.example.oracle
        # Names of the environments whose `reset` takes a `seed`.
        self.seeded = {name for name, example in examples.items() if example.takes_seed}
        # Names of the environments whose `step` takes a `PolicyAnswer`.
        self.takes_answers = {name for name, example in examples.items() if example.takes_answers}
        # Whether the tools of an environment are known only when an episode begins.
        self.brings_tools = any(example.brings_tools for example in examples.values())
        self._schemas = {name: _schemas(example) for name, example in examples.items()}
        self._example_of = examples
        self.tool_schemas = [schema for schemas in self._schemas.values() for schema in schemas]
        self.pays = all(example.pays for example in examples.values())  # whether every environment gives rewards

    def __bool__(self) -> bool:
        """Whether there is an environment."""
        return bool(self._factories)

    @property
    def is_single_step(self) -> bool:
        """Whether a task is a prompt, and its answer the end of the episode."""
        return not self._routed and bool(self) and isinstance(self.example.unwrapped, Prompts) and not self._tools

    @property
    def name(self) -> str:
        """Names of the environments, or the class name of a single one."""
        if not self:
            return "none"
        return ", ".join(self._factories) if self._routed else type(self.example.unwrapped).__name__

    def route(self, task: dict[str, Any]) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        """Return a task's environment (its name), arguments of `reset`, and tools; a `ValueError` if it has none."""
        if not self._routed:
            owns_data = task == NO_TASK and not isinstance(self.example, ToolEnvironment)
            return "", {} if owns_data else task, self._schemas[""]
        name = task.get("environment")
        if name not in self._factories:
            raise ValueError(
                f"The column `environment` of a task is {name!r}; `environment_factory` has {list(self._factories)}."
            )
        return name, {key: value for key, value in task.items() if key != "environment"}, self._schemas[name]

    def check_task(self, task: dict[str, Any]) -> None:
        """Check by the signature of `reset` that a task fits, and by its name of an environment: a `ValueError`."""
        name, keywords, _ = self.route(task)
        example = self._example_of[name]
        try:
            signature = inspect.signature(example.task_reader)
        except ValueError:  # some builtins have none
            return
        try:
            signature.bind(**{**({"seed": 0} if name in self.seeded else {}), **keywords})
        except TypeError as error:
            raise ValueError(f"`reset` of {type(example.unwrapped).__name__} does not take these: {error}.") from error

    def try_reset(self, task: dict[str, Any]) -> Any:
        """Reset an instance with a task outside of episodes; raises what it raises, or a `TimeoutError`."""
        name, keywords, _ = self.route(task)
        keywords = with_seed(keywords, 0) if name in self.seeded else keywords
        with self.lend(name) as worker:
            return self.finish(worker, lambda environment: environment.reset(**deepcopy(keywords)), "`reset`")

    @contextmanager
    def lend(self, name: str) -> Iterator[EnvironmentWorker]:
        """Lend an instance outside of any episode, as soon as one is free. It is discarded after an error."""
        while (worker := self.acquire(name)) is None:
            time.sleep(CLOSING_INTERVAL)
        try:
            yield worker
        except BaseException:
            if worker in self._workers:  # it did not hang
                self.discard(worker)
            raise
        self.release(worker)

    def finish(self, worker: EnvironmentWorker, job: Callable[[TextEnvironment], Any], name: str) -> Any:
        """Run a job on an instance; it is given up, with a `TimeoutError` that has the `name`, after `timeout`."""
        future = worker.submit(job)
        if not futures.wait([future], self.timeout).done:
            self.discard(worker, hangs=True)
            raise TimeoutError(f"{name} took longer than `environment_timeout={self.timeout}` seconds")
        return future.result()

    def acquire(self, name: str) -> EnvironmentWorker | None:
        """Return a free or a new instance; `None` while `max_instances` are in use or closing."""
        own = self._idle[name]
        if self.max_instances is not None:
            while self._num_playing + (not own) > self.max_instances:  # also of examples of several environments
                spare = next((workers for other, workers in self._idle.items() if workers and other != name), own)
                if not spare:
                    return None
                self.discard(spare.pop())  # to make room
            if self._num_playing + (not own) + self._num_closing > self.max_instances:
                return None
        return own.pop() if own else self._hire(name, self._move)

    def release(self, worker: EnvironmentWorker) -> None:
        """Return an instance to the pool for the next episode."""
        if worker in self._moved:
            self.discard(worker)
        else:
            self._idle[worker.name].append(worker)

    def shrink(self, num_idle: int) -> None:
        """Close free instances, until there are at most `num_idle` of each environment."""
        for workers in self._idle.values():
            while len(workers) > num_idle:
                self.discard(workers.pop())

    def check_own(self, worker: EnvironmentWorker) -> None:
        """Raise a `ValueError` if a worker's instance, which a factory may return again, is another one's in use."""
        if worker.environment is None:  # it could not be made
            return
        instance = worker.environment.unwrapped
        other = self._workers_of.get(id(instance), worker)
        if other is not worker and other in self._workers:
            raise ValueError(
                f"{self._factory_name(worker.name)} returned a {type(instance).__name__} that it had returned before, "
                "and that is in use: episodes in it would be mixed. Return a new instance at each call."
            )
        self._workers_of[id(instance)] = worker

    def discard(self, worker: EnvironmentWorker, hangs: bool = False) -> None:
        """Close an instance permanently, without waiting for it. One that hangs may have to be left behind."""
        self._workers.discard(worker)
        self._moved.discard(worker)
        closer = worker.stop()
        if hangs:
            if worker.blocker is worker:
                self._give_own_loops(worker.name)
            # A new list, as another thread may count at the moment.
            self._hanging = [other for other in self._hanging if other.is_left_behind] + [worker]
            closer = worker.kill()
        for thread in [thread for thread in self._closers if not thread.is_alive()]:
            del self._closers[thread]
        self._closers[closer] = time.monotonic() + CLOSING_SECONDS

    def call(self, job: Callable[[], Any], name: str) -> Any:
        """Run a job that needs no instance, as those do: in a thread, within the time limit."""
        worker = EnvironmentWorker(name, ToolEnvironment, has_own_loop=name in self._blocking)
        try:
            return self.finish(worker, lambda _: job(), name)
        finally:
            worker.stop()

    @property
    def num_left_behind(self) -> int:
        """Number of discarded instances that still hang in a thread or a task."""
        return sum(worker.is_left_behind for worker in self._hanging)

    def close(self) -> None:
        """Close all instances. New ones are made when they are needed."""
        self._idle.clear()
        _close(self._workers, self._closers)

    @property
    def _num_playing(self) -> int:
        """Number of instances that play, or could."""
        return len(self._workers - self._examples)

    @property
    def _num_closing(self) -> int:
        now = time.monotonic()
        return sum(thread.is_alive() and now < end for thread, end in self._closers.items())

    def _hire(self, name: str, move: Mover | None = None) -> EnvironmentWorker:
        make = partial(_make, self._factories[name], self._tools)
        if move is not None:
            make = partial(move, make)
        worker = EnvironmentWorker(name, make, has_own_loop=name in self._blocking)
        self._workers.add(worker)
        return worker

    def _give_own_loops(self, name: str) -> None:
        """Move the instances of an environment to event loops of their own, each for the rest of its episode."""
        self._blocking.add(name)
        for worker in self._workers:
            if worker.name == name and not worker.has_own_loop:
                worker.has_own_loop = True
                self._moved.add(worker)
        for worker in self._idle.pop(name, []):
            self.release(worker)

    def _make_example(self, name: str) -> TextEnvironment:
        worker = self._hire(name)
        factory = self._factory_name(name)
        try:
            environment = self.finish(worker, lambda environment: environment, factory)
        except EnvironmentFailure as error:
            raise ValueError(f"{factory} cannot be called without arguments, or fails: {error}") from error
        if self._move is not None:
            self._examples.add(worker)
        else:
            self.release(worker)
        return environment

    def _factory_name(self, name: str) -> str:
        return f"`environment_factory[{name!r}]`" if self._routed else "`environment_factory`"


def _mover(workers: str) -> Mover | None:
    """Return what plays an environment elsewhere than in this process; `None` if nothing does."""
    if workers == "ray":
        if find_spec("ray") is None:
            raise ValueError(
                "`environment_workers='ray'` needs Ray, which is not installed: `pip install trl-nlac[ray]`."
            )
        from .ray_process import RayEnvironment, connect

        connect()
        return RayEnvironment
    if workers == "process":
        from .process import ProcessEnvironment

        return ProcessEnvironment
    return None


def _make(factory: EnvironmentFactory, tools: list[Callable] | None) -> TextEnvironment:
    try:
        instance = factory()
    except BaseException as error:
        raise EnvironmentFailure(f"{type(error).__name__}: {describe_error(error)}") from error
    if isinstance(instance, type):
        raise TypeError(f"`environment_factory` returned the class {instance.__name__}. Return an instance of it.")
    if "reset" not in dir(instance) or not callable(instance.reset):
        raise TypeError(
            f"`environment_factory` returned a {type(instance).__name__}, which has no `reset` method. An "
            "environment defines `reset(**task)`, and `step(action: str) -> StepResult` or public methods as tools."
        )
    if "step" not in dir(instance):
        return ToolEnvironment(instance, tools)
    if tools:
        raise ValueError(
            f"`tools` go with an environment whose actions are tool calls, but {type(instance).__name__} defines "
            "`step`. Omit `tools`."
        )
    gymnasium = sys.modules.get("gymnasium")  # if nobody has imported it, nothing is one
    if gymnasium is not None and isinstance(instance, gymnasium.Env):
        from .gym import GymEnvironment

        return GymEnvironment(instance)
    return instance if isinstance(instance, TextEnvironment) else PlainEnvironment(instance)


def _schemas(example: TextEnvironment) -> list[dict[str, Any]]:
    """Return copies of the JSON schemas of an environment's tools."""
    try:
        return json.loads(json.dumps(example.tool_schemas))
    except (TypeError, ValueError, DocstringParsingException, TypeHintParsingException) as error:
        raise ValueError(
            f"`environment_factory` ({type(example.unwrapped).__name__}) or `tools` has a tool without a JSON schema. "
            f"It needs type hints, and a docstring that describes its arguments: {describe_error(error)}"
        ) from error


def _close(workers: set[EnvironmentWorker], closers: dict[threading.Thread, float]) -> None:
    """End the workers, by other threads those that take longer than `CLOSING_SECONDS`, and wait as long for these."""
    deadline = time.monotonic() + CLOSING_SECONDS
    for worker in workers:
        worker.stop()
    hanging = [worker for worker in workers if not worker.wait(max(0.0, deadline - time.monotonic()))]
    killers = [worker.kill() for worker in hanging]
    deadline = time.monotonic() + CLOSING_SECONDS
    for thread in [*closers, *killers]:
        thread.join(max(0.0, deadline - time.monotonic()))
    workers.clear()
    closers.clear()
