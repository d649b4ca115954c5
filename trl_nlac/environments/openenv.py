# SPDX-License-Identifier: Apache-2.0

"""Environments of the openenv package: behind a server, or in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

from ..episodes.text_environment import EnvironmentFailure, Message, StepResult, TextEnvironment


if TYPE_CHECKING:
    from openenv.core import EnvClient, SyncEnvClient
    from openenv.core.env_server.interfaces import Environment

ActionT = TypeVar("ActionT")
ObservationT = TypeVar("ObservationT")


@dataclass(eq=False, repr=False)
class OpenEnvEnvironment(TextEnvironment, Generic[ActionT, ObservationT]):
    """
    Plays an environment of [OpenEnv](https://github.com/huggingface/OpenEnv): `pip install openenv`.

    `done` ends the task. A reward of `None` is 0. An exception of the server or the connection counts as a failure of
    the environment. So does a connection that was lost and that the client made anew: the server has another session
    for it, in which the episode never began.

    Each instance has a client, and so a session on the server. A server allows `create_app(...,
    max_concurrent_envs=...)` sessions, one by default; the trainer's `max_concurrent_environments` times the number of
    processes must not exceed it.

    Args:
        make_client (`Callable[[], EnvClient | SyncEnvClient | Environment]`):
            Makes the client of a server, for example `lambda: EchoEnv(base_url="http://localhost:8000").sync()`, or
            the environment itself, which then runs in this process. Called before the first task.
        to_action (`Callable[[str], ActionT]`):
            Turns the agent's text into an action of the environment. If it cannot, it raises a `ValueError`, as
            pydantic classes do, whose message becomes the observation. It should refuse everything that the server
            would answer with an error.
        to_text (`Callable[[ObservationT], str]`):
            Turns an observation into the text that the agent reads.
        instructions (`str`, *optional*, defaults to `""`):
            System message that describes the task and the format of actions. Empty for none.
        tool_schemas (`list[dict[str, Any]]`, *optional*):
            JSON schemas of tools, if actions are tool calls. `to_action` then gets `{"name": ..., "arguments": {...}}`
            as text.

    Attributes:
        client (`EnvClient` or `SyncEnvClient` or `Environment`, *optional*):
            The return value of `make_client`, set by the first task.

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

    takes_seed = True  # as every OpenEnv environment does

    make_client: Callable[[], Union["EnvClient", "SyncEnvClient", "Environment"]]
    to_action: Callable[[str], ActionT]
    to_text: Callable[[ObservationT], str]
    instructions: str = ""
    tool_schemas: list[dict[str, Any]] | None = None

    def __post_init__(self):
        try:
            from openenv.core.env_server.interfaces import Environment
        except ImportError as error:
            raise ImportError("OpenEnvEnvironment needs openenv: `pip install openenv`.") from error
        self._environment_class = Environment
        self._connection: Any = None  # of the episode
        self.tool_schemas = self.tool_schemas or []
        self.client: EnvClient | SyncEnvClient | Environment | None = None

    def reset(self, **task) -> str | list[Message]:
        """
        Start a task, and return the first observation, after the instructions if there are any. `task` are arguments
        of the environment's own `reset`, such as `seed`; a server ignores unknown ones.
        """
        if self.client is None:
            self.client = self.make_client()
        observation = self._read(self.client.reset(**task))
        self._connection = self._current_connection()
        if not self.instructions:
            return observation
        return [{"role": "system", "content": self.instructions}, {"role": "user", "content": observation}]

    def step(self, action: str) -> StepResult:
        """
        Take an action. If `to_action` refuses it, the observation is the reason, and nothing happens.

        Raises:
            EnvironmentFailure: If the connection of the episode was lost.
        """
        try:
            action = self.to_action(action)
        except ValueError as error:
            return StepResult(f"Error: {error}")
        result = self.client.step(action)
        if self._current_connection() is not self._connection:
            raise EnvironmentFailure("the connection to the server was lost, and with it the episode")
        reward = 0.0 if result.reward is None else float(result.reward)
        return StepResult(self._read(result), reward, terminated=bool(result.done))

    def close(self) -> None:
        """Close the client, its session on the server and anything it started, such as a container."""
        client, self.client = self.client, None
        if client is not None:
            client.close()

    def _current_connection(self) -> Any:
        """Return the websocket of the client, with which the server's session begins and ends."""
        from openenv.core import SyncEnvClient

        if isinstance(self.client, self._environment_class):
            return None
        return (self.client.async_client if isinstance(self.client, SyncEnvClient) else self.client)._ws

    def _read(self, result: Any) -> str:
        """Return the text of a client's result, or of an observation from an environment in this process."""
        is_local = isinstance(self.client, self._environment_class)
        return self.to_text(result if is_local else result.observation)
