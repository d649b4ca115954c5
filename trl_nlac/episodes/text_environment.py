# SPDX-License-Identifier: Apache-2.0

"""The interface of environments: text in, text out."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..secrets import hide_in_observation, hide_in_text
from ..types import Message, Transition


class EnvironmentFailure(Exception):
    """
    Raised by an environment or a tool that cannot continue for reasons unrelated to the agent, for example because a
    server is down or a container died. The episode is cut before the action and is not trained on as a lost one.
    """


MAX_ERROR = 2000  # characters of the message of an error in logs


def describe_error(error: BaseException) -> str:
    """Return the message of an error of foreign code: valid text without secrets, cut if it is long."""

    def shown(message: str) -> str:
        message = hide_in_text(message[: 2 * MAX_ERROR])
        return message if len(message) <= MAX_ERROR else f"{message[:MAX_ERROR]} [...]"

    return _message_of(error, shown)


def observed_error(error: BaseException) -> str:
    """Return the message of a tool's error for the policy: whole, valid text, see [`~secrets.hide_in_observation`]."""
    return _message_of(error, hide_in_observation)


def _message_of(error: BaseException, shown: Callable[[str], str]) -> str:
    try:
        return shown(str(error)).encode(errors="backslashreplace").decode()
    except BaseException as reason:
        return f"its message cannot be printed: {type(reason).__name__}"


def with_seed(task: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the keywords of `reset` with a seed, if they have none: a dataset fills absent ones with `None`."""
    return task if task.get("seed") is not None else {**task, "seed": seed}


@dataclass(frozen=True)
class Opening:
    """
    How a conversation with the policy begins. `reset` can return one in place of text or messages, where the tools are
    known only then.

    Args:
        messages (`str` or `list[dict[str, Any]]`):
            The first observation, or the messages of a conversation that ends with it.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of the tools that actions in this conversation can call, in place of `tool_schemas`. If
            `None`, those.
    """

    messages: str | list[Message]
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class PolicyAnswer:
    """
    What the policy answered, for environments that want more than the action, see [`TextEnvironment`].

    Args:
        action (`str`):
            The action; tool calls as JSON.
        content (`str`):
            The text for a reader: beside tool calls in the chat template's own format, otherwise the action.
        num_prompt_tokens (`int`):
            Number of tokens of the state.
        num_tokens (`int`):
            Number of tokens of the answer, with its chain of thought.
    """

    action: str
    content: str
    num_prompt_tokens: int
    num_tokens: int


@dataclass(frozen=True)
class StepResult:
    """
    The result of one action.

    Args:
        observation (`str`):
            Text shown to the agent.
        reward (`float`, *optional*, defaults to `0.0`):
            Reward of this step. Tasks usually pay only at the end. Of several conversations, it goes to that of the
            observation, and to all of them if the step terminates the episode.
        terminated (`bool`, *optional*, defaults to `False`):
            The task ended by its own rules; the score is final.
        truncated (`bool`, *optional*, defaults to `False`):
            The episode was cut off from outside; its future is still open.
        info (`dict[str, Any]`, *optional*):
            Further information, as other libraries give it. Nothing here reads it.
        words (`str`, *optional*):
            What a user says after the results of tools that are the observation.
        conversation (`int` or [`Opening`], *optional*):
            Where the policy is asked next. `None`: in the same conversation. A number: in that earlier conversation (0
            is the first), to which the observation belongs; the answered one waits for its own observation. An
            [`Opening`]: in a new conversation; a non-empty observation is then the last one of the answered
            conversation.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    conversation: int | Opening | None = None


class Oracle(Protocol):
    """The ground truth of a world, used to check a critic. States are read from the transition's texts."""

    def quality(self, transition: Transition, action: str) -> float:
        """Return how good `action` is in the state of `transition`, in `[0, 1]`; 1 is a best action that succeeds."""

    def future_is_right(self, transition: Transition, action: str, future: str) -> bool:
        """Whether `future` can follow `action`: the right next observation, then only possible steps."""

    def probes(self, number: int, seed: int) -> list[tuple[dict[str, Any], list[str]]]:
        """Return task rows with scripted actions, whose last ones are good or bad, on which to examine a critic."""


class TextEnvironment(ABC):
    """
    A task that is played in text. Subclass it, or write any class with `reset` and `step`. All methods can be
    asynchronous.

    An instance plays one episode at a time and is reused for the next. It has its own thread, in which it is made,
    played and closed; other instances run at the same time. Report an action's consequences, errors included, in the
    observation. An exception means that the environment itself failed: the episode is then cut and the instance
    discarded.

    Attributes:
        oracle ([`Oracle`], *optional*):
            The ground truth of the world, where it is known; critics are then checked against it.
        tool_schemas (`list[dict[str, Any]]`):
            JSON schemas of the tools that actions can call, if any. The policy is given them.
        takes_seed (`bool`):
            Whether `reset` takes a `seed`. A task without this column then gets a different seed for every episode.
        takes_answers (`bool`):
            Whether `step` takes a [`PolicyAnswer`] in place of the action.
        brings_tools (`bool`):
            Whether `reset` returns the tools, in an [`Opening`], and tells the policy how to write its answers.
        pays (`bool`):
            Whether it gives rewards. If not, there must be reward functions.
    """

    oracle: Oracle | None = None
    tool_schemas: list[dict[str, Any]] = []
    takes_seed: bool = False
    takes_answers: bool = False
    brings_tools: bool = False
    pays: bool = True

    @abstractmethod
    def reset(self, **task) -> str | list[Message] | Opening:
        """
        Start the task in one row of the dataset. Return the first observation, or the messages of a conversation that
        ends with it.
        """

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Apply the agent's action."""

    def final_reward(self) -> float:
        """
        Return a reward for the whole episode, added to those of its steps. Also called if a limit of the trainer cut
        the episode, but not if the environment failed.
        """
        return 0.0

    def close(self) -> None:  # noqa: B027
        """Release the environment's resources (processes, containers, connections). It is not used afterwards."""

    @property
    def unwrapped(self) -> Any:
        """The environment that the user made."""
        return self

    @property
    def task_reader(self) -> Callable:
        """The function whose keywords the columns of a task must fit."""
        return self.reset


_OF_SUBCLASSES = {"brings_tools", "final_reward", "oracle", "pays", "takes_answers", "takes_seed", "tool_schemas"}


class PlainEnvironment(TextEnvironment):
    """Plays an object that has `reset`, `step` and possibly `close`, but is not a [`TextEnvironment`]."""

    def __init__(self, environment: Any):
        unread = sorted(set(dir(environment)) & _OF_SUBCLASSES)
        if unread:
            raise ValueError(
                f"{type(environment).__name__} defines `{'`, `'.join(unread)}`, which only subclasses of "
                f"`TextEnvironment` can: write `class {type(environment).__name__}(TextEnvironment)`."
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

    @property
    def task_reader(self) -> Callable:
        return self.environment.reset
