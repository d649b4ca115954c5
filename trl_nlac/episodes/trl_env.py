# SPDX-License-Identifier: Apache-2.0

"""TRL environments: classes whose public methods are tools."""

import inspect
from collections.abc import Callable
from typing import Any

from transformers.utils import get_json_schema

from ..chat.tool_calls import format_results, parse_tool_calls
from ..event_loop import finish
from ..types import Message
from .recorder import checked_opening
from .text_environment import EnvironmentFailure, StepResult, TextEnvironment, observed_error


class ToolEnvironment(TextEnvironment):
    """
    Plays an environment written for [`~trl.GRPOTrainer`]: `reset(**row)`, public methods as tools, and optionally
    `get_reward()`. All can be asynchronous. `_close()`, if defined, is called at the end, and `_is_done()` after the
    calls of each turn: where it is true, the episode ends there, without a final answer.

    An action that is a tool call, `{"name": ..., "arguments": {...}}`, or a list of tool calls, calls the tools in
    turn. As in TRL, an exception in one becomes an observation, except for [`EnvironmentFailure`], and any other
    action is the agent's final answer and ends the episode. Without an environment only the standalone tools are used.
    """

    def __init__(self, environment: Any | None = None, tools: list[Callable] | None = None):
        self.environment = environment
        members = [] if environment is None else inspect.getmembers(type(environment), inspect.isfunction)
        names = [name for name, _ in members if name not in ("reset", "get_reward") and not name.startswith("_")]
        functions = [getattr(environment, name) for name in names] + list(tools or [])  # bound, but for static ones
        self.tools: dict[str, Callable] = {function.__name__: function for function in functions}
        self.pays = "get_reward" in [name for name, _ in members]

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, from their signatures and docstrings."""
        return [get_json_schema(tool) for tool in self.tools.values()]

    @property
    def unwrapped(self) -> Any:
        return self.environment

    @property
    def task_reader(self) -> Callable:
        return self.reset if self.environment is None else self.environment.reset

    def reset(self, prompt: str | list[Message] | None = None, **task) -> list[Message]:
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        row = task if prompt is None else {"prompt": prompt, **task}
        observation = None if self.environment is None else finish(self.environment.reset(**row))
        if observation is None:
            return messages
        *before, last = checked_opening(messages).messages
        return [*before, {**last, "content": last["content"] + _as_text(observation)}]

    def step(self, action: str) -> StepResult:
        calls = parse_tool_calls(action)
        if not calls:
            return StepResult("", terminated=True)
        results = format_results([self._call(name, arguments) for name, arguments in calls])
        is_done = "_is_done" in dir(self.environment) and bool(finish(self.environment._is_done()))
        return StepResult(results, terminated=is_done)

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return a tool's answer, or its error as TRL phrases it."""
        try:
            if name not in self.tools:
                raise ValueError(f"Tool {name} not found.")
            return _as_text(finish(self.tools[name](**arguments)))
        except EnvironmentFailure:
            raise
        except (Exception, SystemExit) as error:  # as in TRL, the model reads what went wrong; its code can call exit
            return str({"error": observed_error(error)})

    def final_reward(self) -> float:
        reward = finish(self.environment.get_reward()) if self.pays else None
        return 0.0 if reward is None else reward

    def close(self) -> None:
        if "_close" in dir(self.environment):
            return self.environment._close()


def _as_text(observation: Any) -> str:
    """Return the text of an observation: joined for content blocks, for the rest Python's own, as in TRL."""
    if isinstance(observation, list) and observation and all(_is_block(part) for part in observation):
        return "\n".join(block["text"] for block in observation if block["type"] == "text")
    return str(observation)


def _is_block(part: Any) -> bool:
    """Whether something is a content block: a text, or an image, which no text shows."""
    if not isinstance(part, dict):
        return False
    return part.get("type") == "image" or (part.get("type") == "text" and isinstance(part.get("text"), str))
