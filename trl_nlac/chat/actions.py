# SPDX-License-Identifier: Apache-2.0

"""Actions: how they are written, parsed, kept in a conversation and answered."""

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..types import Answer, Message, Prompt
from .call_reader import read_calls, without_observation
from .encoder import ChatEncoder
from .tool_calls import (
    before_words,
    call_message,
    format_results,
    format_tool_calls,
    parse_results,
    parse_tool_calls,
    read_calls_of,
)


logger = logging.getLogger(__name__)

# A tag of ReAct with its marks: bold, a heading, a list, a number.
_TAG = r"(?:[^\w\n]|_)*(?:\d+[.)](?:[^\w\n]|_)*)?{name}(?:[ \t]*\d+)?[*_`]*(?:[ \t]*:[*_`]*|(?=[^\w\n]*$))"
_THOUGHT = re.compile(rf"^{_TAG.format(name='Thought')}", re.IGNORECASE | re.MULTILINE)
_ACTION = re.compile(rf"^{_TAG.format(name='Action')}", re.IGNORECASE | re.MULTILINE)
_ACTION_IN_LINE = re.compile(r"[*_#>`-]{0,3}[ \t]?\bAction[*_`]*[ \t]*:[*_`]*", re.IGNORECASE)
_VALUES = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}  # of types but texts
_TAGS = (_THOUGHT, _ACTION, _ACTION_IN_LINE)


def parse_text(text: str) -> str | None:
    """Parse free text; `None` if there is none."""
    return text.strip() or None


def parse_react(text: str) -> str | None:
    """Parse the action of `Thought: ... Action: ...`, up to an invented observation; `None` if it is not so."""
    tags = _react_tags(text)
    if tags is None:
        return None
    tag = tags[1]
    action = without_observation(text[tag.end() :]).strip()
    if _ACTION.search(action) or (tag.re is _ACTION_IN_LINE and _ACTION_IN_LINE.search(action)):
        return None
    is_bold = tag[0].count("**") == 1 and action.endswith("**")  # with its tag
    return (action[:-2].rstrip() if is_bold else action) or None


def parse_plain(text: str) -> str | None:
    """Parse an answer without a thought: what follows `Action:`, or, without any tag, all of it; else `None`."""
    if _THOUGHT.search(text):
        return None
    return parse_react(f"Thought: none\n{text}") if any(tag.search(text) for tag in _TAGS) else parse_text(text)


def react_thought(text: str) -> str:
    """Parse the thought of a ReAct answer; empty if it has none."""
    tags = _react_tags(text)
    return text[tags[0].end() : tags[1].start()].strip() if tags else ""


def _react_tags(text: str) -> tuple[re.Match[str], re.Match[str]] | None:
    """Find the tag of the thought and that of the action after it; `None` if there are not both."""
    thought = _THOUGHT.search(text)
    if thought is None:
        return None
    action = _ACTION.search(text, thought.end()) or _ACTION_IN_LINE.search(text, thought.end())
    return (thought, action) if action else None


def choose_format(
    name: str | None,
    chat: ChatEncoder,
    tools: list[dict[str, Any]],
    brings_tools: bool = False,
    is_single_step: bool = False,
) -> str:
    """
    Choose the format of actions, and log it if the options leave it open (`None`): `"tool_call"` where there are tools
    and the chat template supports them; elsewhere `"text"` if `brings_tools` or `is_single_step`, and otherwise
    `"react"`. An agent that brings its tools, if it has any, brings its own words about answers, too, which `"react"`
    would contradict. In a single step tasks are prompts, whose answers are taken as they are. Raise a `ValueError` if
    the name of a tool contains a token of the tokenizer's own, or a call of it is not read back.
    """
    if name is not None:
        if name != "tool_call" or chat.calls_tools:
            ActionFormat(chat, name).check_tools(tools)
        return name
    without_calls = "text" if brings_tools or is_single_step else "react"
    name = "tool_call" if (tools or brings_tools) and chat.calls_tools else without_calls
    template = "shows" if chat.calls_tools else "does not show"
    reason = "there are no tools"
    if tools or brings_tools:
        reason = f"there {'are' if tools else 'can be'} tools, and the chat template {template} them"
    logger.info("`action_format` is %r: %s.", name, reason)
    ActionFormat(chat, name).check_tools(tools)
    return name


@dataclass(eq=False)
class ActionFormat:
    """
    The format of actions in a conversation: `"react"`, `"text"` or `"tool_call"`, which is the chat template's own. If
    it does not keep the history, each state is the last observation. Raise a `ValueError` if the chat template does
    not support the format.
    """

    chat: ChatEncoder
    name: str
    keeps_history: bool = True

    def __post_init__(self):
        self.calls_tools = self.name == "tool_call"
        if self.calls_tools and not self.chat.calls_tools:
            raise ValueError(
                "`action_format='tool_call'` needs a chat template that shows tools and tool calls, and a "
                "`response_template` of the tokenizer to parse them. Use `action_format='react'` with this model."
            )
        self.shows_thoughts = self.name == "react"  # whether an action follows a thought in words
        self._held_tools: set[str] = set()  # JSON of tools that were checked

    def check_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """Raise a `ValueError` unless a call of each tool, as the chat template writes it, is read back."""
        self.chat.template.check_tools(tools)
        for tool in tools if self.calls_tools else ():
            written = json.dumps(tool)
            if written in self._held_tools:
                continue
            function = tool.get("function", tool)
            parameters = (function.get("parameters") or {}).get("properties") or {}
            types = {key: of.get("type") if isinstance(of, dict) else None for key, of in parameters.items()}
            arguments = {key: _VALUES.get(of if isinstance(of, str) else None, "x") for key, of in types.items()}
            if not self.is_held(call_message([(function["name"], arguments)]), (tool,)):
                raise ValueError(
                    f"The chat template writes calls of the tool {function['name']!r}, with the parameters "
                    f"{list(parameters)}, in a way that cannot be read back. Give the tool and its parameters names "
                    "of letters, digits and underscores, or use `action_format='react'`."
                )
            self._held_tools.add(written)

    def call_form(self) -> str:
        """Show how the chat template writes a call. Small models make up forms that they do not see."""
        written = self.chat.completion(call_message([("<tool>", {"<parameter>": "<value>"})]))
        hidden = set(self.chat.tokenizer.all_special_ids).difference(self.chat.stop_ids)  # which no text can write
        return "<one call of a tool>" if hidden.intersection(written) else self.chat.decode(written)

    def is_held(self, message: Message, tools: Sequence[dict[str, Any]] = ()) -> bool | None:
        """Whether calls, as the chat template writes them, are read as what they were; `None` if they cannot be."""
        written = self.chat.completion(message)
        opening = self.chat.template.opening_ids
        action = self.read(Prompt.of(opening, tuple(tools), len(opening)), written)[1]
        calls = self._calls(action)
        if not calls:
            return None
        # Values can come back in other types where the schema does not say theirs, and are written alike.
        names, meant = ([(name, set(values)) for name, values in of] for of in (calls, read_calls_of(message)))
        return (
            names == meant and self.chat.completion({**message, **call_message(calls, message["content"])}) == written
        )

    def read(self, prompt: Prompt, token_ids: list[int], takes_whole: bool = False) -> tuple[str, str | None]:
        """
        Decode an answer to `prompt`, in which calls in the chat template's own format become JSON, and parse the
        action in it, `None` if it cannot be read. If it `takes_whole`, an answer in `"react"` without a thought is an
        action, too, where there are no tools, see [`parse_plain`].
        """
        if not self.calls_tools:
            text = self.chat.decode(token_ids)
            action = self.parse(text, prompt.tools)
            if action is None and takes_whole and self.shows_thoughts and not prompt.tools:
                action = parse_plain(text)
            return text, action
        text = self.chat.decode_calls(prompt.ids, token_ids, list(prompt.tools) or None)
        if text:
            return text, self.parse(text, prompt.tools)
        text = self.chat.decode(token_ids)  # of a call that the template's parser cannot read
        action = self.parse(text, prompt.tools)
        return text, action if self._calls(action) else None

    def parse(self, text: str, tools: Sequence[dict[str, Any]] = ()) -> str | None:
        """
        Parse the text of an answer into an action: a call as JSON, however it was written, see
        [`~chat.call_reader.read_calls`], or the text of any other action. `None` if the answer breaks the format, or
        is meant as a call that cannot be read. Without tools nothing is taken for a call.
        """
        action = parse_react(text) if self.shows_thoughts else parse_text(text)
        if tools:
            calls = read_calls(text if action is None else action, list(tools))
            if calls is None:
                return None
            action = format_tool_calls(calls) if calls else action
        return None if len(self._calls(action)) > 1 and not self.chat.template.takes_several_calls() else action

    def text(self, action: str, thought: str) -> str:
        """Write an action in words, as the policy does."""
        return f"Thought: {thought}\nAction: {action}" if self.shows_thoughts else action

    def completion(self, action: str, thought: str) -> list[int]:
        """Encode an action as if the policy had sampled it."""
        calls = self._calls(action)
        return self.chat.completion(call_message(calls) if calls else self.text(action, thought))

    def message(self, action: str | None, text: str, token_ids: list[int]) -> Message:
        """Write an answer as a message: its tool calls, or text, and its thoughts, as the template keeps them."""
        calls = self._calls(action)
        if calls:
            beside = self.chat.text_beside_calls(token_ids) if self.chat.has_call(token_ids) else ""
            message = call_message(calls, beside)
        else:
            message = {"role": "assistant", "content": self.chat.decode(token_ids) if action is None else text}
        template = self.chat.template
        thought = self.chat.reasoning(token_ids) if template.keeps_reasoning_of(self._tools(action)) else ""
        return message | {template.reasoning_field: thought} if thought else message

    def shown(self, messages: list[Message]) -> list[Message]:
        """Write opening messages as the template shows them: without its format calls are JSON, results a user's."""
        if self.calls_tools:
            return messages
        written: list[Message] = []
        for message in messages:
            calls = read_calls_of(message)
            if calls:
                text = "\n".join(part for part in (message["content"], format_tool_calls(calls)) if part)
                message = {"role": "assistant", "content": text}
            elif message["role"] == "tool":
                message = {"role": "user", "content": message["content"]}
            written.append(message)
        return written

    def replies(self, action: str | None, observation: str, words: str = "") -> list[Message]:
        """Write the environment's answer as messages of the user or results of tools, then the user's `words`."""
        tools = self._tools(action)
        if not tools:
            return [{"role": "user", "content": observation}]
        results = parse_results(before_words(observation, words), len(tools))
        replies = [{"role": "tool", "name": t, "content": result} for t, result in zip(tools, results, strict=True)]
        return [*replies, {"role": "user", "content": words}] if words else replies

    def observation_ids(self, last_id: int, action: str, observation: str, words: str = "") -> list[int]:
        """Encode the answer to `action`, which ends with `last_id`, and `words` of a user after results of tools."""
        tools = self._tools(action)
        if not tools:
            return self.chat.reply(last_id, observation)
        return self.chat.results(last_id, parse_results(before_words(observation, words), len(tools)), tools, words)

    def check_words_after(self, action: str) -> None:
        """Raise a `ValueError` if the template cannot show a user's words after the results of `action`."""
        tools = self._tools(action)
        if tools and self.keeps_history:
            self.chat.template.tool_scaffold(tools, True)

    def shortened(self, action: str | None, observation: str, max_tokens: int) -> str:
        """Cut the environment's answer to `action` to `max_tokens` tokens: the result of each tool to its share."""
        results = parse_results(observation, max(1, len(self._tools(action))))
        shortened = [self.chat.shortened(result, max_tokens // len(results)) for result in results]
        if shortened == results:
            return observation
        return shortened[0] if results[0] == observation else format_results(shortened)

    def remembered(self, token_ids: list[int], action: Any, keeps_reasoning: bool | None = None) -> list[int]:
        """Reduce sampled tokens that were parsed as `action` to the part that stays in the conversation."""
        tools = self._tools(action) if self.chat.has_call(token_ids) else ()  # or it was called in other words
        return self.chat.remembered(token_ids, tools, keeps_reasoning)

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
