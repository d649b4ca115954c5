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


"""Environments of the package openenv: behind a server, or in this process."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

from .base import Message, StepResult, TextEnvironment


if TYPE_CHECKING:
    from openenv.core import EnvClient, SyncEnvClient
    from openenv.core.env_server.interfaces import Environment

ActionT = TypeVar("ActionT")
ObservationT = TypeVar("ObservationT")


class OpenEnvEnvironment(TextEnvironment, Generic[ActionT, ObservationT]):
    """
    Plays an environment of [OpenEnv](https://github.com/huggingface/OpenEnv): `pip install openenv`.

    `done` ends the task. A reward of `None` is 0. What the server or the connection raises is a failure of the
    environment.

    Each instance has a client, and so a session on the server. A server allows as many as its
    `create_app(..., max_concurrent_envs=...)` says, which is one by default; `max_concurrent_environments` of the
    trainer, times the number of processes, must not be more.

    Args:
        make_client (`Callable[[], EnvClient | SyncEnvClient | Environment]`):
            Makes the client of a server, for example `lambda: EchoEnv(base_url="http://localhost:8000").sync()`, or the
            environment itself, to be played in this process. Called before the first task.
        to_action (`Callable[[str], ActionT]`):
            Turns the agent's text into an action of the environment. A `ValueError` says that it cannot; its words
            become the observation. Actions made by a pydantic class raise one by themselves. It should refuse all that
            the server would answer with an error.
        to_text (`Callable[[ObservationT], str]`):
            Turns an observation into what the agent reads.
        instructions (`str`, *optional*, defaults to `""`):
            What the task is and how actions are written, as the system message. Empty for none.
        tool_schemas (`list[dict[str, Any]]`, *optional*):
            JSON schemas of tools, where actions are tool calls. `to_action` then gets `{"name": ..., "arguments": {...}}`
            as text.

    Attributes:
        client (`EnvClient` or `SyncEnvClient` or `Environment`, *optional*):
            What `make_client` made, once there was a task.

    Raises:
        ImportError: If openenv is not installed.

    Example:

    ```python
    environment = OpenEnvEnvironment(
        make_client=lambda: TextArenaEnv(base_url="http://localhost:8000").sync(),
        to_action=lambda text: TextArenaAction(message=text),
        to_text=lambda observation: observation.messages[-1].content,
    )
    ```
    """

    takes_seed = True  # every environment of OpenEnv does

    def __init__(
        self,
        make_client: Callable[[], Union["EnvClient", "SyncEnvClient", "Environment"]],
        to_action: Callable[[str], ActionT],
        to_text: Callable[[ObservationT], str],
        instructions: str = "",
        tool_schemas: list[dict[str, Any]] | None = None,
    ):
        try:
            from openenv.core.env_server.interfaces import Environment
        except ImportError as error:
            raise ImportError("OpenEnvEnvironment needs openenv: `pip install openenv`.") from error
        self._environment_class = Environment
        self.make_client = make_client
        self.to_action = to_action
        self.to_text = to_text
        self.instructions = instructions
        self.tool_schemas = tool_schemas or []
        self.client: EnvClient | SyncEnvClient | Environment | None = None

    def reset(self, **task) -> str | list[Message]:
        """
        Start a task.

        Args:
            **task:
                Keywords of the environment's own `reset`, such as `seed`. A server takes those that it knows.

        Returns:
            `str` or `list[dict[str, Any]]`: The first observation, after the instructions if there are any.
        """
        if self.client is None:
            self.client = self.make_client()
        observation = self._read(self.client.reset(**task))
        if not self.instructions:
            return observation
        return [{"role": "system", "content": self.instructions}, {"role": "user", "content": observation}]

    def step(self, action: str) -> StepResult:
        """Take an action. One that `to_action` refuses is answered by the reason, and nothing happens."""
        try:
            action = self.to_action(action)
        except ValueError as error:
            return StepResult(f"Error: {error}")
        result = self.client.step(action)
        reward = 0.0 if result.reward is None else float(result.reward)
        return StepResult(self._read(result), reward, terminated=bool(result.done))

    def close(self) -> None:
        """Close the client, and with it the session on the server and what the client started, such as a container."""
        client, self.client = self.client, None
        if client is not None:
            client.close()

    def _read(self, result: Any) -> str:
        """The text of what a client returns, or of what an environment in this process does."""
        is_local = isinstance(self.client, self._environment_class)
        return self.to_text(result if is_local else result.observation)
