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

"""Actions: how they are written, parsed, kept in a conversation and answered."""

import re
from collections.abc import Callable
from typing import Any

from ..types import Answer, Message, Prompt
from .encoder import ChatEncoder
from .tool_calls import call_message, parse_results, parse_tool_calls


_REACT = re.compile(
    r"\s*\W{0,3}Thought\W{0,3}:\s*(?P<thought>.*?)\s*[*_#>`-]{0,3}[ \t]*Action\W{0,3}:\s*(?P<action>.*?\S)\s*",
    re.DOTALL | re.IGNORECASE,
)


def parse_text(text: str) -> str | None:
    """Parse free text; `None` if there is none."""
    return text.strip() or None


def parse_react(text: str) -> str | None:
    """Parse the action of `Thought: ... Action: ...`; `None` if it breaks the format."""
    match = _REACT.fullmatch(text)
    if match is None or len(re.findall(r"^\W{0,3}Action\W{0,3}:", text, re.IGNORECASE | re.MULTILINE)) != 1:
        return None
    return match["action"]


def react_thought(text: str) -> str:
    """Parse the thought of an answer that [`parse_react`] can parse."""
    return _REACT.fullmatch(text)["thought"]


# The parser of an action's text; the text of a tool call is its JSON.
PARSERS: dict[str, Callable[[str], str | None]] = {
    "react": parse_react,
    "text": parse_text,
    "tool_call": parse_text,
}


class ActionFormat:
    """
    The format of actions in a conversation.

    Args:
        chat ([`~chat.encoder.ChatEncoder`]):
            Encodes messages.
        name (`str`):
            `"react"`, `"text"` or `"tool_call"`.

    Attributes:
        calls_tools (`bool`):
            Whether actions are tool calls in the chat template's own format.
        shows_thoughts (`bool`):
            Whether an action follows a thought in words.
        parse (`Callable[[str], str | None]`):
            Parses the text of an answer into an action; `None` if it breaks the format.

    Raises:
        ValueError: If the chat template does not support the format.
    """

    def __init__(self, chat: ChatEncoder, name: str):
        if name == "tool_call" and not chat.calls_tools:
            raise ValueError(
                "`action_format='tool_call'` needs a chat template that shows tools and tool calls, and a "
                "`response_template` of the tokenizer to parse them. Use `action_format='react'` with this model."
            )
        self.chat = chat
        self.name = name
        self.calls_tools = name == "tool_call"
        self.shows_thoughts = name == "react"
        self.parse = PARSERS[name]

    def decode(self, prompt: Prompt, token_ids: list[int]) -> str:
        """Decode an answer to the text that [`parse`] takes."""
        if self.calls_tools:
            return self.chat.decode_calls(prompt.ids, token_ids, list(prompt.tools) or None)
        return self.chat.decode(token_ids)

    def text(self, action: str, thought: str) -> str:
        """Write an action in words, as the policy does."""
        return f"Thought: {thought}\nAction: {action}" if self.shows_thoughts else action

    def completion(self, action: str, thought: str) -> list[int]:
        """Encode an action as if the policy had sampled it."""
        calls = self._calls(action)
        return self.chat.completion(call_message(calls) if calls else self.text(action, thought))

    def message(self, action: str | None, text: str, token_ids: list[int]) -> Message:
        """
        Write an answer of the policy as a message: with its tool calls, or as text, and with its chain of thought
        where the template keeps it. An answer that is no action keeps its raw text.
        """
        calls = self._calls(action)
        if calls:
            message = call_message(calls, self.chat.text_beside_calls(token_ids))
        else:
            message = {"role": "assistant", "content": self.chat.decode(token_ids) if action is None else text}
        template = self.chat.template
        thought = self.chat.reasoning(token_ids) if template.keeps_reasoning_of(self._tools(action)) else ""
        return message | {template.reasoning_field: thought} if thought else message

    def replies(self, action: str | None, observation: str) -> list[Message]:
        """Write the environment's answer as messages: results of tools, or the user's message."""
        tools = self._tools(action)
        if not tools:
            return [{"role": "user", "content": observation}]
        results = parse_results(observation, len(tools))
        return [{"role": "tool", "name": t, "content": result} for t, result in zip(tools, results, strict=True)]

    def observation_ids(self, last_id: int, action: str, observation: str) -> list[int]:
        """Encode the environment's answer to `action`, whose last token is `last_id`."""
        tools = self._tools(action)
        if not tools:
            return self.chat.reply(last_id, observation)
        return self.chat.results(last_id, parse_results(observation, len(tools)), tools)

    def remembered(self, token_ids: list[int], action: Any, keeps_reasoning: bool | None = None) -> list[int]:
        """Reduce sampled tokens that were parsed as `action` to the part that stays in the conversation."""
        return self.chat.remembered(token_ids, self._tools(action), keeps_reasoning)

    def thought(self, answer: Answer) -> str:
        """Decode the thought before an action: the chain of thought, or the thought of a ReAct answer."""
        thought = self.chat.reasoning(list(answer.token_ids))
        if self.shows_thoughts and answer.parsed is not None:
            thought = thought or react_thought(answer.text)
        return thought

    def _calls(self, action: Any) -> list[tuple[str, dict[str, Any]]]:
        """The tools that an action calls in the chat template's own format, with their arguments."""
        return parse_tool_calls(action) if self.calls_tools and isinstance(action, str) else []

    def _tools(self, action: Any) -> tuple[str, ...]:
        return tuple(name for name, _ in self._calls(action))
