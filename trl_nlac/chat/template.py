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

"""A chat template, taken apart once: the tokens that it puts around messages."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import add_response_schema, supports_tool_calling

from ..types import Message
from .tool_calls import call_message


# How templates mark a chain of thought: its start, and its end where the content begins.
_REASONING_TAGS = (
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    ("<think>", "</think>"),
)


@dataclass(frozen=True)
class ToolScaffold:
    """
    The tokens around the results of tools.

    Args:
        pieces (`list[list[int]]`):
            Before, between and after the results.
        as_json (`bool`):
            Whether the template writes results as JSON strings.
        keeps_reasoning (`bool`):
            Whether the call keeps its chain of thought.
    """

    pieces: list[list[int]]
    as_json: bool
    keeps_reasoning: bool


class ChatTemplate:
    """
    The scaffold of a chat template: the tokens around messages, learned from a few rendered conversations.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer with a chat template.
        kwargs (`dict[str, Any]`):
            Additional arguments of the chat template.

    Attributes:
        opening_ids (`list[int]`):
            Tokens that open every assistant's turn.
        prefill (`list[int]`):
            Tokens between a conversation and the sampled tokens, which do not stay in the conversation.
        header (`list[int]`):
            Tokens that only past assistant's turns have after their opening.
        user_header (`list[int]`):
            Tokens between an assistant's turn and the user's message that follows.
        end_of_turn_id (`int`):
            Token that ends an assistant's turn within a conversation.
        stop_id (`int`):
            Token that the model samples at the end of an answer.
        stop_ids (`list[int]`):
            Tokens that the model samples at the end of its turn: of an answer, and of a tool call.
        reasoning_tags (`tuple[str, str]` or `None`):
            Start and end of a chain of thought, if the template has one.
        starts_reasoning (`bool`):
            Whether the sampled tokens begin within a chain of thought.
        keeps_reasoning (`bool`):
            Whether past turns keep their chain of thought.
        thinks_by_default (`bool`):
            Whether the template, with these arguments, lets the model think before it answers.
        can_stop_thinking (`bool`):
            Whether its argument `enable_thinking=False` would change that.
        calls_tools (`bool`):
            Whether the template shows tools and their calls, in a form that can be parsed.
        call_opener (`str`):
            Text before the name of a called tool, without white space; empty without `calls_tools`.
        call_end_id (`int` or `None`):
            Token that ends a turn with tool calls.

    Raises:
        ValueError: If the tokenizer has no chat template, or one under which earlier turns change as a conversation
            grows.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kwargs: dict[str, Any]):
        if tokenizer.chat_template is None:
            raise ValueError(
                "The tokenizer (`processing_class`) has no chat template, which the roles of NLAC need. Set "
                "`tokenizer.chat_template`, or start from an instruction-tuned model."
            )
        self.tokenizer = tokenizer
        self.kwargs = kwargs
        self.scaffold = lru_cache(maxsize=None)(self._cut_scaffold)
        self.tool_scaffold = lru_cache(maxsize=None)(self._cut_tool_scaffold)
        try:
            _, to_past, past_to_user, to_answer = _cut(self.render([_user(0), _assistant(1), _user(2)]), [0, 1, 2])
        except TemplateError as error:
            raise ValueError(
                "The chat template of the tokenizer (`processing_class`) cannot render a conversation in text: "
                f"{error}"
            ) from error
        self._opening = os.path.commonprefix([to_past, to_answer])
        self._prefill = to_answer.removeprefix(self._opening)
        self.opening_ids = self.encode(self._opening)
        self.prefill = self.encode(self._prefill)
        self.header = self.encode(to_past.removeprefix(self._opening))
        after = self.encode(past_to_user)
        if not after or after[0] not in tokenizer.all_special_ids:
            raise ValueError(
                "The chat template of the tokenizer (`processing_class`) does not end an assistant's turn with a "
                "special token, so the end of an action cannot be learned. Use a template that does."
            )
        self.end_of_turn_id, self.user_header = after[0], after[1:]
        self.stop_id = self._special_ids_after(_user(0), _assistant(1))[0]
        self._takes_system = self._shows(_user(0) | {"role": "system"}, _user(1))
        self._takes_repeats = self._shows(_user(0), _user(1))
        self._learn_reasoning()
        self._learn_tool_calls()
        self.stop_ids = list(dict.fromkeys([self.stop_id, *([self.call_end_id] if self.calls_tools else [])]))

    def render(self, messages: list[Message], tools: list[dict] | None = None, is_open: bool = True) -> str:
        """Render a conversation as text; with `is_open`, up to the model's answer."""
        return self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=is_open, **self.kwargs
        )

    def encode(self, text: str) -> list[int]:
        """Encode text of the template itself, with its special tokens."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def fit(self, messages: list[Message]) -> list[Message]:
        """Fit messages to the template: without a system role its content goes to the user, equal neighbours join."""
        if messages[0]["role"] == "system" and not self._takes_system:
            messages = [{**messages[0], "role": "user"}, *messages[1:]]
        elif self._takes_repeats:
            return messages
        fitted: list[Message] = []
        for message in messages:
            if fitted and fitted[-1]["role"] == message["role"]:
                content = f"{fitted[-1]['content'].strip()}\n\n{message['content'].strip()}"
                fitted[-1] = {**fitted[-1], "content": content}
            else:
                fitted.append(message)
        return fitted

    def takes_several_calls(self) -> bool:
        """Whether the template shows several calls in one turn."""
        try:
            self.tool_scaffold(("NLACTOOL", "NLACTOOL"))
        except (TemplateError, ValueError):
            return False
        return True

    def call_scaffold(self, message: Message) -> list[list[int]]:
        """
        Cut a turn that calls tools where its content is: tokens before and after the content, or the whole turn if the
        template leaves out what accompanies calls. The last piece extends beyond the end of the turn.
        """
        results = [
            {"role": "tool", "name": call["function"]["name"], "content": _mark(2)} for call in message["tool_calls"]
        ]
        marked = {**message, "content": _mark(1)} if message["content"] else message
        text = self.render([_user(0), marked, *results]).partition(_mark(0))[2]
        before, found, after = text.removeprefix(self._opening).partition(_mark(1))
        return [self.encode(piece) for piece in ([before, after] if found else [before])]

    def _cut_scaffold(self, roles: tuple[str, ...], tools: str | None) -> list[list[int]]:
        """Encode the text before, between and after messages of these roles."""
        messages = [{"role": role, "content": _mark(i)} for i, role in enumerate(roles)]
        try:
            text = self.render(messages, tools=json.loads(tools) if tools else None)
        except TemplateError as error:
            raise ValueError(f"The chat template cannot render the roles {list(roles)}: {error}") from error
        pieces = _cut(text, range(len(roles)))
        pieces[-1] = pieces[-1].removesuffix(self._prefill)
        return [self.encode(piece) for piece in pieces]

    def _cut_tool_scaffold(self, tools: tuple[str, ...]) -> ToolScaffold:
        number = len(tools)
        results = [{"role": "tool", "name": tool, "content": _mark(1 + number + i)} for i, tool in enumerate(tools)]
        text = self.render([_user(0), _calls(*tools), *results])
        pieces = _cut(text, range(1 + 2 * number))[1 + number :]
        before, *between, after = [*pieces[:-1], pieces[-1].removesuffix(self._prefill)]
        before_ids = self.encode(before)
        before_ids = before_ids[before_ids.index(self.call_end_id) + 1 :]
        return ToolScaffold(
            pieces=[before_ids, *[self.encode(piece) for piece in [*between, after]]],
            as_json=before.endswith('"') and after.startswith('"'),
            keeps_reasoning=self._is_reasoning_kept(_calls(tools[0]), {**results[0], "content": _mark(2)}),
        )

    def _shows(self, *messages: Message) -> bool:
        """Whether the template accepts messages of these roles, and shows them all."""
        try:
            text = self.render(list(messages))
        except TemplateError:
            return False
        return all(message["content"] in text for message in messages)

    def _learn_reasoning(self) -> None:
        text = self.tokenizer.chat_template
        self.reasoning_tags = next((t for t in _REASONING_TAGS if t[0] in text or t[1] in text), None)
        opened, closed = (f"{self._opening}{self._prefill}".rfind(tag) for tag in self.reasoning_tags or ("", ""))
        self.starts_reasoning = opened > closed
        self.keeps_reasoning = self._is_reasoning_kept(_assistant(1), _user(2))
        off = {**self.kwargs, "enable_thinking": False}
        text = self.tokenizer.apply_chat_template([_user(0)], tokenize=False, add_generation_prompt=True, **off)
        self.can_stop_thinking = text != self.render([_user(0)])
        has_analysis = self.reasoning_tags == _REASONING_TAGS[0]  # the models of this template always think
        self.thinks_by_default = self.starts_reasoning or self.can_stop_thinking or has_analysis

    def _learn_tool_calls(self) -> None:
        """Learn how a tool call begins and ends, if the template supports tools and its answers can be parsed."""
        self.calls_tools, self.call_opener, self.call_end_id = False, "", None
        if not supports_tool_calling(self.tokenizer):
            return
        if self.tokenizer.response_template is None:
            try:
                add_response_schema(self.tokenizer)
            except ValueError:
                return
        result = {"role": "tool", "name": "NLACTOOL", "content": _mark(2)}
        text = _cut(self.render([_user(0), _calls("NLACTOOL"), result]), [0, 1, 2])[1]
        text = text.removeprefix(self._opening).partition("NLACTOOL")[0]
        if self.reasoning_tags is not None:
            text = text.rpartition(self.reasoning_tags[1])[2]
        self.call_opener = without_space(text.partition("{")[0]) or without_space(text)
        self.call_end_id = self._special_ids_after(_user(0), _calls("NLACTOOL"))[-1]
        self.calls_tools = True

    def _is_reasoning_kept(self, turn: Message, answer: Message) -> bool:
        """Whether the template still shows the chain of thought of `turn` when `answer` has followed."""
        if self.reasoning_tags is None:
            return False
        thoughts = [{"reasoning_content": "NLACTHOUGHT", "thinking": "NLACTHOUGHT"}]
        if turn["content"] and self.reasoning_tags[0] == "<think>":
            thoughts.append({"content": f"<think>\nNLACTHOUGHT\n</think>\n\n{turn['content']}"})
        return any("NLACTHOUGHT" in self.render([_user(0), turn | thought, answer]) for thought in thoughts)

    def _special_ids_after(self, *messages: Message) -> list[int]:
        """The special tokens at the end of the last message; if there are none, the one that ends past turns."""
        text = self.render(list(messages), is_open=False).rpartition(_mark(1))[2]
        special = [i for i in self.encode(text) if i in self.tokenizer.all_special_ids]
        return special or [self.end_of_turn_id]


def without_space(text: str) -> str:
    """Remove all white space."""
    return "".join(text.split())


def _mark(i: int) -> str:
    return f"NLACMESSAGE{i}X"


def _user(i: int) -> Message:
    return {"role": "user", "content": _mark(i)}


def _assistant(i: int) -> Message:
    return {"role": "assistant", "content": _mark(i)}


def _calls(*tools: str) -> Message:
    return call_message([(tool, {"x": _mark(1 + i)}) for i, tool in enumerate(tools)])


def _cut(text: str, marks: Iterable[int]) -> list[str]:
    """Cut a text at marks: the pieces before, between and after them."""
    pieces = []
    for i in marks:
        piece, found, text = text.partition(_mark(i))
        if not found or "NLACMESSAGE" in piece:
            raise ValueError(
                "The chat template drops, repeats or reorders messages, so earlier turns would change as a "
                "conversation grows. Use a template that keeps every turn as it was."
            )
        pieces.append(piece)
    return [*pieces, text]
