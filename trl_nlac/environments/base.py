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

"""What an environment is: text in, text out."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..types import Transition


Message = dict[str, Any]  # {"role": ..., "content": ...}


class EnvironmentFailure(Exception):
    """
    Raised by an environment or a tool that cannot go on for reasons the agent has no part in: a server that is down, a
    container that died. The episode is cut before the action, and not trained as if it had been lost.
    """


@dataclass(frozen=True)
class StepResult:
    """
    What one action led to.

    Args:
        observation (`str`):
            Text shown to the agent.
        reward (`float`, *optional*, defaults to `0.0`):
            Reward of this step. Tasks usually pay only at the end.
        terminated (`bool`, *optional*, defaults to `False`):
            The task ended by its own rules; the score is final.
        truncated (`bool`, *optional*, defaults to `False`):
            The episode was cut from outside; its future is still open.
        info (`dict[str, Any]`, *optional*):
            Anything else. Not shown to the agent.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class Oracle(Protocol):
    """The truth about a world, for checking what a critic says. States are read from the transition's texts."""

    def quality(self, transition: Transition, action: str) -> float:
        """How good `action` would be in the state of `transition`, in `[0, 1]`; 1 is a best action that succeeds."""

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` can follow `action`: the right next observation, and only possible steps after it."""

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Task rows with scripted actions, with good and bad last actions, on which a critic can be examined."""


class TextEnvironment(ABC):
    """
    A task that is played in text. Subclass it, or write any class with `reset` and `step`. All methods may be
    asynchronous.

    An instance plays one episode at a time and is reused for the next. It lives in a thread of its own, in which it is
    made, played and closed; other instances live at the same time. What goes wrong because of an action belongs into the
    observation; an exception means that the environment itself failed: the episode is then cut, the instance thrown away.

    Attributes:
        oracle ([`Oracle`], *optional*):
            The truth about the world, where it is known; critics are then checked against it.
        tool_schemas (`list[dict[str, Any]]`):
            JSON schemas of the tools that actions can call, if any. They are told to the policy.
        takes_seed (`bool`):
            Whether `reset` takes a `seed`. A task without this column then gets one that is the episode's own.
    """

    oracle: Oracle | None = None
    tool_schemas: list[dict[str, Any]] = []
    takes_seed: bool = False

    @abstractmethod
    def reset(self, **task) -> str | list[Message]:
        """
        Start the task described by one row of the dataset and return the first observation, or the messages of a
        conversation that ends with it.
        """

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Apply the agent's action."""

    def final_reward(self) -> float:
        """
        Reward at the end of an episode, on top of those of its steps. Also asked for where the episode was cut by a limit
        of the trainer, but not where the environment failed.
        """
        return 0.0

    def close(self) -> None:  # noqa: B027
        """Let go of what the environment holds (processes, containers, connections). It is not used afterwards."""

    @property
    def unwrapped(self) -> Any:
        """The environment as the user made it."""
        return self


class PlainEnvironment(TextEnvironment):
    """Plays an object that has `reset` and `step`, and perhaps `close`, without being a [`TextEnvironment`]."""

    def __init__(self, environment: Any):
        unread = sorted(set(dir(environment)) & {"final_reward", "oracle", "takes_seed", "tool_schemas"})
        if unread:
            raise ValueError(
                f"{type(environment).__name__} defines `{'`, `'.join(unread)}`, which is read of subclasses of "
                f"`TextEnvironment` alone: write `class {type(environment).__name__}(TextEnvironment)`."
            )
        self.environment = environment

    def reset(self, **task) -> str | list[Message]:
        return self.environment.reset(**task)

    def step(self, action: str) -> StepResult:
        return self.environment.step(action)

    def close(self) -> None:
        if "close" in dir(self.environment):
            return self.environment.close()

    @property
    def unwrapped(self) -> Any:
        return self.environment
