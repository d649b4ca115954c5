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

"""Where the instances of environments come from."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from .base import Oracle, PlainEnvironment, TextEnvironment
from .trl_env import ToolEnvironment


EnvironmentFactory = Callable[[], Any]


class _NoEnvironment:
    """Stands for the environment where there are only standalone tools."""

    def reset(self, **task) -> None:
        pass


class EnvironmentPool:
    """
    Environment instances, reused from episode to episode.

    Args:
        environment_factory (`Callable` or `dict[str, Callable]`):
            Makes an instance, told apart by its methods: one with `step` is a text environment, one without is a TRL
            environment whose public methods are tools. With a dict, the column `environment` of a task names the factory.
        tools (`list[Callable]`, *optional*):
            Standalone tools, besides those of a TRL environment or without any.

    Raises:
        TypeError: If it is not callable, or what it makes is not an environment.
        ValueError: If there are tools for an environment that defines `step`.
    """

    def __init__(
        self,
        environment_factory: EnvironmentFactory | dict[str, EnvironmentFactory] | None,
        tools: list[Callable] | None = None,
    ):
        if environment_factory is None and tools:
            environment_factory = _NoEnvironment
        self._tools = tools
        self._routed = isinstance(environment_factory, dict)
        self._factories = environment_factory if self._routed else {"": environment_factory}
        self._instances: dict[str, list[TextEnvironment]] = {}
        for name, factory in self._factories.items():
            if not callable(factory):
                raise TypeError(
                    f"`environment_factory` must be a callable that returns an environment, or a dict of such, got "
                    f"{factory!r}."
                )
            self._instances[name] = [self._make(name)]

    def _make(self, name: str) -> TextEnvironment:
        instance = self._factories[name]()
        if "reset" not in dir(instance):
            raise TypeError(
                f"`environment_factory` returned a {type(instance).__name__}, which has no `reset` method. An "
                "environment defines `reset(**task)`, and `step(action: str) -> StepResult` or public methods as tools."
            )
        if "step" not in dir(instance):
            return ToolEnvironment(instance, self._tools)
        if self._tools:
            raise ValueError(
                f"`tools` go with an environment whose actions are tool calls, but {type(instance).__name__} defines "
                "`step`. Leave `tools` out."
            )
        return instance if isinstance(instance, TextEnvironment) else PlainEnvironment(instance)

    @property
    def example(self) -> TextEnvironment:
        """An instance of the first environment."""
        return next(iter(self._instances.values()))[0]

    @property
    def oracle(self) -> Oracle | None:
        """The truth, if there is a single environment and it knows it."""
        return None if self._routed else self.example.oracle

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools of all environments."""
        return [schema for instances in self._instances.values() for schema in instances[0].tool_schemas]

    @property
    def pays(self) -> bool:
        """Whether every environment gives rewards."""
        examples = [instances[0] for instances in self._instances.values()]
        return all(example.pays for example in examples if isinstance(example, ToolEnvironment))

    def take(self, tasks: list[dict[str, Any]]) -> list[tuple[TextEnvironment, dict[str, Any]]]:
        """
        An instance for each task, none of them twice, and the keywords for its `reset`.

        Raises:
            ValueError: If a task names an environment that does not exist.
        """
        used: Counter[str] = Counter()
        taken = []
        for task in tasks:
            name = task.get("environment") if self._routed else ""
            if name not in self._factories:
                raise ValueError(
                    f"The column `environment` of a task is {name!r}; `environment_factory` has {list(self._factories)}."
                )
            if used[name] == len(self._instances[name]):
                self._instances[name].append(self._make(name))
            keywords = {key: value for key, value in task.items() if not (self._routed and key == "environment")}
            taken.append((self._instances[name][used[name]], keywords))
            used[name] += 1
        return taken
