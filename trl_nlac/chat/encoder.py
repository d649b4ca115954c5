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

"""
Messages to token ids, so that a conversation only ever grows at its end, and token ids back to what was said.

The tokens of a chat template around the messages (its scaffold) are encoded once per sequence of roles. The messages
between them are encoded as plain text: whatever an observation contains, it never becomes a special token.
"""

import json
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from trl.chat_template_utils import add_response_schema, supports_tool_calling

from .tool_calls import call_message, format_tool_calls


Message = dict[str, Any]  # {"role": ..., "content": ...}

# How templates mark a chain of thought: what opens it, and what ends it where the content begins.
_REASONING_TAGS = (
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    ("<think>", "</think>"),
)


@dataclass(frozen=True)
class _ToolScaffold:
    """
    Tokens before, between and after the results of tools; whether the template writes them as JSON; whether the call
    keeps its thoughts.
    """

    pieces: list[list[int]]
    as_json: bool
    keeps_reasoning: bool


class ChatEncoder:
    """
    Encodes conversations with a tokenizer's chat template, and reads what a model says.

    A conversation ends with the opening of an assistant's turn. What the template adds to it only where the model is to
    speak (`<think>`, say) is the `prefill`: it comes before the sampled tokens, but does not stay in the conversation.
    Neither does a chain of thought, where the template drops it from earlier turns.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer with a chat template.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Further arguments of the chat template.

    Attributes:
        prefill (`list[int]`):
            Tokens between a conversation and what the model samples.
        end_of_turn_id (`int`):
            Token that ends an assistant's turn within a conversation.
        stop_ids (`list[int]`):
            Tokens that the model samples at the end of its turn: of an answer, and of a tool call.
        reasoning_tags (`tuple[str, str]` or `None`):
            What opens and what closes a chain of thought, if the template knows one.
        calls_tools (`bool`):
            Whether the template shows tools and their calls, in a form that can be read.

    Raises:
        ValueError: If the tokenizer has no chat template, or one with which a conversation cannot only grow.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: dict[str, Any] | None = None):
        if tokenizer.chat_template is None:
            raise ValueError(
                "The tokenizer (`processing_class`) has no chat template, which the roles of NLAC need. Set "
                "`tokenizer.chat_template`, or start from an instruction-tuned model."
            )
        self.tokenizer = tokenizer
        self.chat_template_kwargs = chat_template_kwargs or {}
        self._scaffold = lru_cache(maxsize=None)(self._cut_scaffold)
        self._tool_scaffold = lru_cache(maxsize=None)(self._cut_tool_scaffold)

        messages = [_user(0), _assistant(1), _user(2)]
        try:
            _, to_past, past_to_user, to_answer = _cut(self._render(messages), [0, 1, 2])
        except TemplateError as error:
            raise ValueError(
                f"The chat template of the tokenizer (`processing_class`) cannot render a conversation in text: {error}"
            ) from error
        self._opening = os.path.commonprefix([to_past, to_answer])  # of every assistant's turn
        self._prefill = to_answer.removeprefix(self._opening)
        self._opening_ids = self._encode_scaffold(self._opening)
        self.prefill = self._encode_scaffold(self._prefill)
        self._header = self._encode_scaffold(to_past.removeprefix(self._opening))  # only of turns of the past
        after = self._encode_scaffold(past_to_user)
        if not after or after[0] not in tokenizer.all_special_ids:
            raise ValueError(
                "The chat template of the tokenizer (`processing_class`) does not end an assistant's turn with a "
                "special token, so the end of an action cannot be learned. Use a template that does."
            )
        self.end_of_turn_id, self._user_header = after[0], after[1:]
        self._stop_id = self._special_ids_after(_user(0), _assistant(1))[0]
        self._takes_system = self._renders(_user(0) | {"role": "system"}, _user(1))
        self._takes_repeats = self._renders(_user(0), _user(1))

        text = tokenizer.chat_template
        self.reasoning_tags = next((t for t in _REASONING_TAGS if t[0] in text or t[1] in text), None)
        opened, closed = (f"{self._opening}{self._prefill}".rfind(tag) for tag in self.reasoning_tags or ("", ""))
        self._starts_reasoning = opened > closed  # the model's tokens begin within a chain of thought
        self._keeps_reasoning = self._is_reasoning_kept(_assistant(1), _user(2))
        self.calls_tools = self._learn_tool_calls()
        self.stop_ids = list(dict.fromkeys([self._stop_id, *([self._call_end_id] if self.calls_tools else [])]))
        self._turn_end_ids = {self.end_of_turn_id, *self.stop_ids}
        self._check_against_template()

    # Conversations

    def start(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """
        Token ids of a conversation, up to where the assistant speaks.

        Args:
            messages (`list[dict[str, Any]]`):
                Messages; one of the assistant may hold `tool_calls`, one of the tool has its `name`.
            tools (`list[dict[str, Any]]`, *optional*):
                JSON schemas of the tools, for the template to show.
        """
        length = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        opening = self._fit(messages[:length])
        roles = tuple(message["role"] for message in opening)
        token_ids = self._join(self._scaffold(roles, json.dumps(tools) if tools else None), opening)
        for role, turn in groupby(messages[length:], lambda message: message["role"]):
            for group in [list(turn)] if role == "tool" else [[message] for message in turn]:
                contents = [message["content"] for message in group]
                if role == "assistant":
                    token_ids += self.past_turn(group[0])
                elif role == "tool":
                    token_ids += self.results(token_ids[-1], contents, tuple(message["name"] for message in group))
                else:
                    token_ids += self.reply(token_ids[-1], contents[0])
        return token_ids

    def reply(self, last_id: int, content: str) -> list[int]:
        """
        Token ids of the user's message that follows an assistant's turn, up to where the assistant speaks again.

        Args:
            last_id (`int`):
                Last token of the assistant's turn. If that was cut off before its end-of-turn token, that comes first.
            content (`str`):
                The message.
        """
        return self._end(last_id) + self._join([self._user_header, self._opening_ids], [{"content": content}])

    def results(self, last_id: int, contents: list[str], tools: tuple[str, ...]) -> list[int]:
        """Token ids of the results of the `tools` that an assistant's turn called, in place of a user's message."""
        scaffold = self._tool_scaffold(tools)
        if scaffold.as_json:
            contents = [json.dumps(content, ensure_ascii=False)[1:-1] for content in contents]
        return self._end(last_id) + self._join(scaffold.pieces, [{"content": content} for content in contents])

    def past_turn(self, message: str | Message) -> list[int]:
        """Token ids of an assistant's turn as it stands within a conversation."""
        message = _from_assistant(message)
        if message.get("tool_calls"):
            return self._encode_tool_call(message)
        return [*self._header, *self._encode(message["content"]), self.end_of_turn_id]

    def completion(self, message: str | Message) -> list[int]:
        """Token ids of an assistant's turn, without a chain of thought, as if the model had sampled it."""
        message = _from_assistant(message)
        if message.get("tool_calls"):
            return self._encode_tool_call(message)
        header = self._encode_scaffold(f"\n{self.reasoning_tags[1]}\n\n") if self._starts_reasoning else self._header
        return [*header, *self._encode(message["content"]), self._stop_id]

    def remembered(
        self, token_ids: list[int], tools: tuple[str, ...] = (), keeps_reasoning: bool | None = None
    ) -> list[int]:
        """
        What stays in the conversation of a sampled turn.

        Args:
            token_ids (`list[int]`):
                The turn as it was sampled.
            tools (`tuple[str, ...]`, *optional*):
                The tools that it calls, if any.
            keeps_reasoning (`bool`, *optional*):
                Whether its chain of thought stays. If `None`, as the template does.
        """
        if keeps_reasoning is None:
            keeps_reasoning = self._tool_scaffold(tools).keeps_reasoning if tools else self._keeps_reasoning
        if self.reasoning_tags is None or keeps_reasoning:
            kept = [*self.prefill, *token_ids]
        else:
            kept = [*([] if tools else self._header), *token_ids[self.content_start(token_ids) :]]
        if kept and kept[-1] == self._stop_id and not tools:
            kept[-1] = self.end_of_turn_id
        return kept

    # Answers

    def decode(self, token_ids: list[int]) -> str:
        """The text of an answer, without its chain of thought and without special tokens."""
        content_ids = token_ids[self.content_start(token_ids) :]
        return self.tokenizer.decode(content_ids, skip_special_tokens=True).strip()

    def decode_action(
        self, prompt_ids: list[int], token_ids: list[int], tools: list[dict[str, Any]] | None = None
    ) -> str:
        """
        The text of an answer that may call tools: the calls in JSON, see [`~chat.tool_calls.format_tool_calls`], or what was
        said without one. Empty if a call cannot be read, or if there are several and the template shows only one.
        """
        prefix = [*prompt_ids, *self.prefill]
        try:
            message = self.tokenizer.parse_response(token_ids, prefix=prefix, tools=tools)
        except (ValueError, TypeError):  # a call in broken JSON
            return ""
        calls = [call.get("function", call) for call in message.get("tool_calls") or []]
        if not calls:
            is_broken = self._call_opener in _without_space(self.tokenizer.decode(token_ids))
            return "" if is_broken else self.decode(token_ids)
        read = [(call.get("name"), call.get("arguments") or {}) for call in calls]
        if not all(isinstance(name, str) and isinstance(arguments, dict) for name, arguments in read):
            return ""
        return format_tool_calls(read) if len(read) == 1 or self._takes_several_calls() else ""

    def said_beside_calls(self, token_ids: list[int]) -> str:
        """What an answer says before it calls tools."""
        text = self.tokenizer.decode(token_ids[self.content_start(token_ids) :])
        opener = re.search(r"\s*".join(map(re.escape, self._call_opener)), text)
        said = text[: opener.start()] if opener else ""
        for token in self.tokenizer.all_special_tokens:
            said = said.replace(token, "")
        return said.strip()

    def content_start(self, token_ids: list[int]) -> int:
        """Index at which the content of an answer begins, after its chain of thought."""
        start = 0
        if self.reasoning_tags is not None:
            opening, closing = self.reasoning_tags
            start = self._index_after(token_ids, closing) or 0
            if not start and (self._starts_reasoning or opening in self.tokenizer.decode(token_ids)):
                return len(token_ids)  # the thought never came to an end
            while 0 < start < len(token_ids) and not self.tokenizer.decode([token_ids[start]]).strip():
                start += 1
        has_header = token_ids[start : start + len(self._header)] == self._header
        return start + len(self._header) if has_header else start

    def reasoning(self, token_ids: list[int]) -> str:
        """The chain of thought of an answer; empty if it has none."""
        if self.reasoning_tags is None:
            return ""
        opening, closing = self.reasoning_tags
        token_ids = list(token_ids)
        before, found, _ = self.tokenizer.decode(token_ids[: self.content_start(token_ids)]).partition(closing)
        return before.rpartition(opening)[2].strip() if found else ""

    def with_reasoning(self, token_ids: list[int], reasoning: str) -> list[int]:
        """The answer with another chain of thought; its content stays as it was sampled."""
        opening, closing = self.reasoning_tags
        start, end = self._index_after(token_ids, opening) or 0, self._index_after(token_ids, closing)
        thought = self.tokenizer(f"\n{reasoning.strip()}\n", add_special_tokens=False, split_special_tokens=True)
        return [*token_ids[:start], *thought["input_ids"], *self._encode_scaffold(closing), *token_ids[end:]]

    def _index_after(self, token_ids: list[int], text: str) -> int | None:
        """Length of the shortest beginning of `token_ids` that holds `text`."""
        if text not in self.tokenizer.decode(token_ids):
            return None
        low, high = 0, len(token_ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if text in self.tokenizer.decode(token_ids[:middle]) else (middle + 1, high)
        return low

    # The scaffold

    def _render(self, messages: list[Message], tools=None, add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **self.chat_template_kwargs,
        )

    def _renders(self, *messages: Message) -> bool:
        """Whether the template accepts messages of these roles, and shows them all."""
        try:
            text = self._render(list(messages))
        except TemplateError:
            return False
        return all(message["content"] in text for message in messages)

    def _fit(self, messages: list[Message]) -> list[Message]:
        """The messages as the template takes them: the user tells what the system says, neighbours of a role join."""
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

    def _cut_scaffold(self, roles: tuple[str, ...], tools: str | None) -> list[list[int]]:
        """Token ids before, between and after the messages of these roles."""
        messages = [{"role": role, "content": _mark(i)} for i, role in enumerate(roles)]
        try:
            text = self._render(messages, tools=json.loads(tools) if tools else None)
        except TemplateError as error:
            raise ValueError(f"The chat template cannot render the roles {list(roles)}: {error}") from error
        pieces = _cut(text, range(len(roles)))
        pieces[-1] = pieces[-1].removesuffix(self._prefill)
        return [self._encode_scaffold(piece) for piece in pieces]

    def _cut_tool_scaffold(self, tools: tuple[str, ...]) -> _ToolScaffold:
        number = len(tools)
        results = [{"role": "tool", "name": tool, "content": _mark(1 + number + i)} for i, tool in enumerate(tools)]
        text = self._render([_user(0), _calls(*tools), *results])
        pieces = _cut(text, range(1 + 2 * number))[1 + number :]
        before, *between, after = [*pieces[:-1], pieces[-1].removesuffix(self._prefill)]
        before_ids = self._encode_scaffold(before)
        before_ids = before_ids[before_ids.index(self._call_end_id) + 1 :]
        return _ToolScaffold(
            pieces=[before_ids, *[self._encode_scaffold(piece) for piece in [*between, after]]],
            as_json=before.endswith('"') and after.startswith('"'),
            keeps_reasoning=self._is_reasoning_kept(_calls(tools[0]), {**results[0], "content": _mark(2)}),
        )

    def _takes_several_calls(self) -> bool:
        """Whether the template shows several calls in one turn."""
        try:
            self._tool_scaffold(("NLACTOOL", "NLACTOOL"))
        except (TemplateError, ValueError):
            return False
        return True

    def _learn_tool_calls(self) -> bool:
        """How a tool call begins and ends, if the template knows tools and its answers can be read."""
        if not supports_tool_calling(self.tokenizer):
            return False
        if self.tokenizer.response_template is None:
            try:
                add_response_schema(self.tokenizer)
            except ValueError:
                return False
        result = {"role": "tool", "name": "NLACTOOL", "content": _mark(2)}
        text = _cut(self._render([_user(0), _calls("NLACTOOL"), result]), [0, 1, 2])[1]
        text = text.removeprefix(self._opening).partition("NLACTOOL")[0]
        if self.reasoning_tags is not None:
            text = text.rpartition(self.reasoning_tags[1])[2]
        self._call_opener = _without_space(text.partition("{")[0]) or _without_space(text)
        self._call_end_id = self._special_ids_after(_user(0), _calls("NLACTOOL"))[-1]
        return True

    def _encode_tool_call(self, message: Message) -> list[int]:
        calls = [call["function"] for call in message["tool_calls"]]
        for call in calls:
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            if any(token in arguments for token in self.tokenizer.all_special_tokens):
                raise ValueError(
                    f"The arguments of a tool call hold a special token of the chat template: {arguments}."
                )
        results = [{"role": "tool", "name": call["name"], "content": _mark(2)} for call in calls]
        marked = {**message, "content": _mark(1)} if message["content"] else message
        text = self._render([_user(0), marked, *results]).partition(_mark(0))[2]
        before, found, after = text.removeprefix(self._opening).partition(_mark(1))
        token_ids = self._encode_scaffold(before)
        if found:  # many templates leave out what is said beside calls
            token_ids += [*self._encode(message["content"]), *self._encode_scaffold(after)]
        return token_ids[: token_ids.index(self._call_end_id) + 1]

    def _is_reasoning_kept(self, turn: Message, answer: Message) -> bool:
        """Whether the template shows the chain of thought of `turn` still when `answer` has followed."""
        if self.reasoning_tags is None:
            return False
        thoughts = [{"reasoning_content": "NLACTHOUGHT", "thinking": "NLACTHOUGHT"}]
        if turn["content"] and self.reasoning_tags[0] == "<think>":
            thoughts.append({"content": f"<think>\nNLACTHOUGHT\n</think>\n\n{turn['content']}"})
        return any("NLACTHOUGHT" in self._render([_user(0), turn | thought, answer]) for thought in thoughts)

    def _special_ids_after(self, *messages: Message) -> list[int]:
        """The special tokens with which the last of `messages` ends; else the one that ends a turn of the past."""
        text = self._render(list(messages), add_generation_prompt=False).rpartition(_mark(1))[2]
        special = [i for i in self._encode_scaffold(text) if i in self.tokenizer.all_special_ids]
        return special or [self.end_of_turn_id]

    def _check_against_template(self) -> None:
        messages = [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ]
        whole = self._encode_scaffold(self._render(messages))
        if self.start(messages) + self.prefill != whole:
            raise ValueError(
                "Under the chat template of the tokenizer (`processing_class`), the tokens of a conversation are not those "
                "of its turns one after the other: earlier turns change as it grows, or the tokenizer puts a space before "
                "every text. The model would not be trained on what it sampled. Use a template and a tokenizer in which "
                "every turn stands for itself."
            )

    def _end(self, last_id: int) -> list[int]:
        """What is missing at the end of a turn whose last token is `last_id`."""
        return [] if last_id in self._turn_end_ids else [self.end_of_turn_id]

    def _join(self, scaffold: list[list[int]], messages: list[Message]) -> list[int]:
        token_ids = list(scaffold[0])
        for message, piece in zip(messages, scaffold[1:], strict=True):
            token_ids += [*self._encode(message["content"]), *piece]
        return token_ids

    def _encode(self, content: str) -> list[int]:
        return self.tokenizer(content.strip(), add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def _encode_scaffold(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


def _from_assistant(message: str | Message) -> Message:
    return {"role": "assistant", "content": message} if isinstance(message, str) else message


def _without_space(text: str) -> str:
    return "".join(text.split())


def _mark(i: int) -> str:
    return f"NLACMESSAGE{i}X"


def _user(i: int) -> Message:
    return {"role": "user", "content": _mark(i)}


def _assistant(i: int) -> Message:
    return {"role": "assistant", "content": _mark(i)}


def _calls(*tools: str) -> Message:
    return call_message([(tool, {"x": _mark(1 + i)}) for i, tool in enumerate(tools)])


def _cut(text: str, marks) -> list[str]:
    """What stands before, between and after the marks."""
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
