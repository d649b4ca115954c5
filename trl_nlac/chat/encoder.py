# SPDX-License-Identifier: Apache-2.0

"""Conversations as token ids that only grow at their end, and token ids back to text."""

import json
import re
from bisect import bisect_left, bisect_right
from itertools import pairwise
from os.path import commonprefix
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..types import SPEAKERS, Message
from .message_reader import first_answer
from .template import ChatTemplate, Scaffold, without_space
from .tool_calls import call_message, format_tool_calls, is_writable, read_call, read_calls_of, results_in_order


_CHARACTERS_PER_TOKEN = 16  # more than in any text that is worth its tokens
_EMPTY_LINES = re.compile(r"\A\s*[\r\n]")


class ChatEncoder:
    """
    Encode conversations with a tokenizer's chat template, and decode answers.

    The tokens of the template come from a [`~chat.template.ChatTemplate`]. All text of messages and tools between them
    goes through [`~chat.plain_text.PlainText`]: none of it becomes a token that only the template and the model may
    write.

    A conversation ends with the opening of an assistant's turn. Tokens that the template adds only before an answer
    (`<think>`, for example) are the `prefill`: they precede the sampled tokens, but do not stay in the conversation.
    Neither does a chain of thought, where the template drops it from earlier turns. Raise a `ValueError` if the
    tokenizer has no chat template, or one under which earlier turns change as a conversation grows.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: dict[str, Any] | None = None):
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, chat_template_kwargs or {})
        self.prefill = self.template.prefill
        self.end_of_turn_id = self.template.end_of_turn_id
        self.stop_ids = self.template.stop_ids
        self.reasoning_tags = self.template.reasoning_tags
        # Whether every token that an answer is sampled after or with stays in the conversation.
        self.keeps_sampled_tokens = self.reasoning_tags is None and not self.prefill
        self.calls_tools = self.template.calls_tools
        self._turn_end_ids = {self.end_of_turn_id, *self.stop_ids}
        self._keeps_indentation = True
        if not self._is_as_template(""):
            raise ValueError(
                "Under the chat template of the tokenizer (`processing_class`), the tokens of a conversation are not "
                "those of its turns one after the other: earlier turns change as it grows, or the tokenizer puts a "
                "space before every text. The model would not be trained on what it sampled. Use a template and a "
                "tokenizer in which every turn stands for itself."
            )
        self._keeps_indentation = self._is_as_template("   ")

    # Conversations

    def start(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """
        Encode a conversation, up to the assistant's answer, with the tools that the template shows. An assistant's
        message can have `tool_calls`, with arguments as an object or as JSON text, and its chain of thought in the
        field that the template reads, which is shown where the template keeps it. The results of tools follow their
        calls. Raise a `ValueError` if a message has another role, two messages of the assistant follow each other, the
        name of a tool contains a token of the tokenizer's own, results do not belong to calls, or the template cannot
        show the conversation.
        """
        unknown = [message["role"] for message in messages if message["role"] not in SPEAKERS]
        if unknown:
            raise ValueError(f"The role {unknown[0]!r} of a message is none of {', '.join(SPEAKERS)}.")
        first = first_answer(messages)  # before it, the assistant has only greeted
        starts = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first]
        if any(end == start + 1 for start, end in pairwise(starts)):
            raise ValueError("Two messages of the assistant follow each other: join them, or add what came between.")
        opening = messages[: starts[0] if starts else len(messages)]
        opening = self.template.fit([{**one, "content": self._trimmed(one["content"])} for one in opening])
        roles = tuple(message["role"] for message in opening)
        scaffold = self.template.scaffold(roles, json.dumps(tools) if tools else None)
        token_ids = self._join(scaffold, [message["content"] for message in opening])
        for start, end in pairwise([*starts, len(messages)]):
            token_ids += self.past_turn(messages[start])
            token_ids += self._replies(token_ids[-1], messages[start], messages[start + 1 : end])
        return token_ids

    def _replies(self, last_id: int, said: Message, replies: list[Message]) -> list[int]:
        """Encode what follows an assistant's turn: results of the tools that it called, or a user's messages."""
        results = [message for message in replies if message["role"] == "tool"]
        words = "\n\n".join(message["content"] for message in replies if message["role"] != "tool")
        if results:
            contents = [result["content"] for result in results_in_order(said.get("tool_calls") or [], results)]
            return self.results(last_id, contents, tuple(name for name, _ in read_calls_of(said)), words)
        return self.reply(last_id, words) if replies else []

    def reply(self, last_id: int, content: str) -> list[int]:
        """Encode the user's message after an assistant's turn, which is ended if its `last_id` does not end it."""
        scaffold = Scaffold(self.template.user_header, [self.template.opening])
        return self._end(last_id) + self._join(scaffold, [content])

    def results(self, last_id: int, contents: list[str], tools: tuple[str, ...], words: str = "") -> list[int]:
        """Encode results of the `tools` that a turn called, in place of a user's message, or before its `words`."""
        around = self.template.tool_scaffold(tools, bool(words))
        if around.as_json:
            contents = [json.dumps(content, ensure_ascii=False) for content in contents]
        return self._end(last_id) + self._join(around.scaffold, [*contents, words] if words else contents)

    def past_turn(self, message: str | Message) -> list[int]:
        """Encode an assistant's turn within a conversation; a `ValueError` if the template cannot show it."""
        message = _from_assistant(message)
        if message.get("tool_calls"):
            return self._encode_turn(message, self.template.call_end_id)
        if self._has_kept_reasoning(message):
            return self._encode_turn(message, self.end_of_turn_id)
        return [*self.template.header, *self._encode(message["content"].strip()), self.end_of_turn_id]

    def completion(self, message: str | Message) -> list[int]:
        """Encode a turn as if sampled after the prefill; raise a `ValueError` if the template cannot show it."""
        message, template = _from_assistant(message), self.template
        turn, number = self.past_turn(message), len(self.prefill)
        if not message.get("tool_calls"):
            turn[-1] = template.stop_id
        if self._has_kept_reasoning(message):
            if turn[:number] == self.prefill:
                return turn[number:]
            turn = self.past_turn({**message, template.reasoning_field: ""})  # the prefill has ended the thought
        header = template.call_headers[bool(message["content"])] if message.get("tool_calls") else template.header
        body = turn[len(header) :]
        if template.starts_reasoning:
            header = template.encode(f"\n{self.reasoning_tags[1]}\n\n")
        elif header[:number] == self.prefill:
            header = header[number:]
        return [*header, *body]

    def beginning(self, text: str) -> list[int]:
        """Encode the text that an assistant's turn begins with: the tokens that it has whichever word comes next."""
        return commonprefix([self.completion(f"{text} {word}") for word in ("a", "The")])

    def remembered(
        self, token_ids: list[int], tools: tuple[str, ...] = (), keeps_reasoning: bool | None = None
    ) -> list[int]:
        """
        Reduce a sampled turn, which calls these tools, to the part that stays in the conversation. A turn without a
        chain of thought stays as the template shows it, whatever the prefill was. With `keeps_reasoning=None` a chain
        of thought stays where the template keeps it.
        """
        template = self.template
        if keeps_reasoning is None:
            keeps_reasoning = template.keeps_reasoning_of(tools)
        if keeps_reasoning and self.reasoning(token_ids):
            kept = [*self.prefill, *token_ids]
        elif tools:
            body = token_ids[self._reasoning_end(token_ids) :]
            kept = [*template.call_headers[bool(self._text_before_calls(body))], *body]
        else:
            kept = [*template.header, *token_ids[self.content_start(token_ids) :]]
        if kept and kept[-1] == template.stop_id and not tools:
            kept[-1] = self.end_of_turn_id
        return kept

    # Limits

    def shortened(self, text: str, max_tokens: int) -> str:
        """
        Cut a text of more than `max_tokens` tokens in the middle: its beginning and its end stay, and a mark says how
        many characters are left out. A text of more than 16 characters for each token is cut without being encoded.
        """
        most = _CHARACTERS_PER_TOKEN * max_tokens
        if len(text) <= most and len(self._encode(text)) <= max_tokens:
            return text
        lengths = range(min(len(text), most) // 2)
        longest = bisect_right(
            lengths, max_tokens, key=lambda length: len(self._encode(_without_middle(text, length)))
        )
        return _without_middle(text, max(0, longest - 1))

    def marked(self, token_ids: list[int], mark: str) -> list[int]:
        """Add a mark to the user's message at the end of an opening, whose last tokens begin the assistant's turn."""
        opening, mark = self.template.opening, mark.strip()
        said = token_ids[: len(token_ids) - len(opening.token_ids)]
        if self.tokenizer.decode(said).rstrip().endswith(mark):
            return token_ids
        return [*said, *self.template.plain_text.encode(f"\n\n{mark}{opening.space}"), *opening.token_ids]

    def answer_starts(self, token_ids: list[int]) -> list[int]:
        """Find where assistant's turns begin in a conversation: after each opening of one."""
        opening = self.template.opening_ids
        ends = range(len(opening), len(token_ids) + 1)
        return [end for end in ends if token_ids[end - len(opening) : end] == opening]

    # Answers

    def decode(self, token_ids: list[int]) -> str:
        """Decode an answer, without its chain of thought and without special tokens."""
        content_ids = [i for i in token_ids[self.content_start(token_ids) :] if i not in self._turn_end_ids]
        return self.tokenizer.decode(content_ids, skip_special_tokens=True).strip()

    def token_span(self, token_ids: list[int], start: int, end: int) -> tuple[int, int]:
        """Find the tokens of an answer with the characters from `start` to `end` of its text, see [`decode`]."""
        first = self.content_start(token_ids)
        lengths = range(len(token_ids) - first + 1)

        def text_of(length: int) -> str:
            return self.tokenizer.decode(token_ids[first : first + length], skip_special_tokens=True)

        text = text_of(lengths[-1])
        space = len(text) - len(text.lstrip())
        before = bisect_right(lengths, space + start, key=lambda length: len(text_of(length))) - 1
        until = bisect_left(lengths, space + end, key=lambda length: len(text_of(length)))
        return first + before, first + until

    def decode_calls(
        self, prompt_ids: list[int], token_ids: list[int], tools: list[dict[str, Any]] | None = None
    ) -> str:
        """
        Decode an answer that can call tools: the calls in JSON, see [`~chat.tool_calls.format_tool_calls`], or the
        text of an answer without one. Empty if a call cannot be parsed, or if there are several and the template shows
        one.
        """
        if self.template.value_pattern is None:
            tools = [_without_texts(tool) for tool in tools or []]
        message = self._parse([*prompt_ids, *self.prefill], token_ids, tools)
        if message is None:
            return ""
        calls = [read_call(call) for call in message.get("tool_calls") or []]
        close_id, unclosed = self.template.call_close_id, token_ids
        if close_id in token_ids:
            unclosed = token_ids[len(token_ids) - token_ids[::-1].index(close_id) :]
        if (not calls or close_id is not None) and self._text_before_calls(unclosed) is not None:
            return ""
        if not calls:
            return self.decode(token_ids)
        if None in calls or not is_writable(calls) or (len(calls) > 1 and not self.template.takes_several_calls()):
            return ""
        if not self._is_exact(calls, token_ids):
            return ""
        return format_tool_calls(calls)

    def _is_exact(self, calls: list[tuple[str, dict[str, Any]]], token_ids: list[int]) -> bool:
        """Whether read calls would be written as they stand in the answer, with nothing between them left unread."""
        pattern = self.template.value_pattern
        if pattern is None:
            return True
        opener = re.compile(r"\s*".join(map(re.escape, self.template.call_opener)))

        def parts(ids: list[int]) -> tuple[list[tuple[str, str]], str]:
            text = self.tokenizer.decode([i for i in ids if i not in self._turn_end_ids])
            text = text[opener.search(text).start() :]
            return [(found["key"], found["value"]) for found in pattern.finditer(text)], pattern.sub("", text)

        sampled, around = parts(token_ids[self._reasoning_end(token_ids) :])
        written, expected = parts(self.past_turn(call_message(calls)))
        around, expected = without_space(around), without_space(expected)
        values = [value for _, arguments in calls for value in arguments.values()]
        return (
            around.startswith(expected)
            and not self.template.plain_text.has_tag(around[len(expected) :])  # of a call that goes on
            and len(sampled) == len(written) == len(values)
            and all(
                one == other or (one[0] == other[0] and not isinstance(value, str))
                for one, other, value in zip(sampled, written, values, strict=True)
            )
        )

    def has_call(self, token_ids: list[int]) -> bool:
        """Whether an answer calls a tool in the template's own format, in a way that can be parsed or not."""
        return self._text_before_calls(token_ids) is not None

    def text_beside_calls(self, token_ids: list[int]) -> str:
        """Decode the text of an answer before its first tool call and after its last."""
        token_ids = token_ids[self._reasoning_end(token_ids) :]
        message = self._parse([*self.template.opening_ids, *self.prefill], token_ids) or {}
        # Of several texts the parser returns the last.
        texts = [self._text_before_calls(token_ids) or "", self._without_tags(message.get("content") or "")]
        return "\n".join(dict.fromkeys(text for text in texts if text))

    def _text_before_calls(self, token_ids: list[int]) -> str | None:
        """Decode the text before the first tool call; `None` if no call begins."""
        text = self.tokenizer.decode(token_ids)
        opener = re.search(r"\s*".join(map(re.escape, self.template.call_opener)), text)
        return self._without_tags(text[: opener.start()]) if opener else None

    def _without_tags(self, text: str) -> str:
        for token in self.tokenizer.all_special_tokens:
            text = text.replace(token, "")
        return text.strip()

    def _parse(
        self, prompt_ids: list[int], token_ids: list[int], tools: list[dict[str, Any]] | None = None
    ) -> Message | None:
        """Parse an answer into a message; `None` if it has a call in broken JSON."""
        text, prefix = self.tokenizer.decode(token_ids), self.tokenizer.decode(prompt_ids)
        try:
            return self.tokenizer.parse_response(text, prefix=prefix, tools=tools)
        except Exception:  # of transformers' parser, which meets any text here
            return None

    def content_start(self, token_ids: list[int]) -> int:
        """Find where the content of an answer begins, after its chain of thought."""
        start, header = self._reasoning_end(token_ids), self.template.header
        return start + len(header) if token_ids[start : start + len(header)] == header else start

    def _reasoning_end(self, token_ids: list[int]) -> int:
        """Find where the chain of thought of an answer ends, with the white space after it."""
        if self.reasoning_tags is None:
            return 0
        opening, closing = self.reasoning_tags
        start = self._index_after(token_ids, closing) or 0
        if not start and (self.template.starts_reasoning or self._index_after(token_ids, opening)):
            return len(token_ids)  # the thought never ended
        while 0 < start < len(token_ids) and not self.tokenizer.decode([token_ids[start]]).strip():
            start += 1
        return start

    def reasoning(self, token_ids: list[int]) -> str:
        """Decode the chain of thought of an answer; empty if it has none."""
        if self.reasoning_tags is None:
            return ""
        opening, closing = self.reasoning_tags
        token_ids = list(token_ids)
        before, found, _ = self.tokenizer.decode(token_ids[: self.content_start(token_ids)]).partition(closing)
        return before.rpartition(opening)[2].strip() if found else ""

    def with_reasoning(self, token_ids: list[int], reasoning: str) -> list[int]:
        """Replace the chain of thought of an answer; its content, and the space around, stay as they were sampled."""
        opening, closing = self.reasoning_tags
        start, end = self._index_after(token_ids, opening) or 0, self._index_after(token_ids, closing)
        replaced = self.tokenizer.decode(token_ids[start:end]).partition(closing)[0]
        space = replaced[: len(replaced) - len(replaced.lstrip())], replaced[len(replaced.rstrip()) :]
        thought = self._encode(reasoning.strip(), space[1])
        return [
            *token_ids[:start],
            *self.template.encode(space[0]),
            *thought,
            *self.template.encode(closing),
            *token_ids[end:],
        ]

    def _index_after(self, token_ids: list[int], text: str) -> int | None:
        """
        Length of the shortest beginning of `token_ids` that contains `text`: the token, where the tokenizer has it as
        one, so that an argument or a sentence that quotes it is none.
        """
        tag_id = self.tokenizer.get_added_vocab().get(text)
        if tag_id is not None:
            return token_ids.index(tag_id) + 1 if tag_id in token_ids else None
        if text not in self.tokenizer.decode(token_ids):
            return None
        lengths = range(len(token_ids))
        return bisect_left(lengths, True, key=lambda length: text in self.tokenizer.decode(token_ids[:length]))

    def _encode_turn(self, message: Message, end_id: int) -> list[int]:
        """Encode a turn as the template shows it, up to the token that ends it."""
        scaffold, contents = self.template.turn_scaffold(message)
        token_ids = self._join(scaffold, [content.strip() for content in contents])
        return token_ids[: token_ids.index(end_id) + 1]

    def _has_kept_reasoning(self, message: Message) -> bool:
        """Whether an assistant's message has a chain of thought, and the template keeps it."""
        tools = tuple(call["function"]["name"] for call in message.get("tool_calls") or [])
        return bool(message.get(self.template.reasoning_field)) and self.template.keeps_reasoning_of(tools)

    def _is_as_template(self, indentation: str) -> bool:
        """Whether the tokens of a conversation are those of the template, where its users begin with white space."""
        messages = [
            {"role": "user", "content": f"{indentation}one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": f"{indentation}three"},
        ]
        return self.start(messages) + self.prefill == self.template.encode(self.template.render(messages))

    def _end(self, last_id: int) -> list[int]:
        """Tokens that are missing at the end of a turn whose last token is `last_id`."""
        return [] if last_id in self._turn_end_ids else [self.end_of_turn_id]

    def _join(self, scaffold: Scaffold, contents: list[str]) -> list[int]:
        token_ids = list(scaffold.before)
        for content, piece in zip(contents, scaffold.pieces, strict=True):
            token_ids += [*self._encode(content, piece.space), *piece.token_ids]
        return token_ids

    def _encode(self, content: str, space: str = "") -> list[int]:
        """Encode a message, with the white space of the template that follows it."""
        return self.template.plain_text.encode(self._trimmed(content) + space)

    def _trimmed(self, content: str) -> str:
        """
        Leave out the white space around a message, but for the indentation of its first line, where the template shows
        it. White space at its end and empty lines at its beginning could become one token with those of the template.
        """
        content = content.rstrip()
        return _EMPTY_LINES.sub("", content) if self._keeps_indentation else content.lstrip()


def _without_middle(text: str, length: int) -> str:
    """Leave out what stands between the first and the last `length` characters of a text."""
    end = len(text) - length
    return f"{text[:length]} [... {end - length:,} characters left out ...] {text[end:]}"


def _without_texts(tool: dict[str, Any]) -> dict[str, Any]:
    """Leave out the parameters that take texts: where texts are in quotes, the parser must take none for a `null`."""
    function = tool.get("function", tool)
    schema = function.get("parameters")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    left = {name: of for name, of in properties.items() if not _takes_text(of)} if isinstance(properties, dict) else {}
    return {"name": function.get("name"), "parameters": {"properties": left}}


def _takes_text(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    types = schema.get("type")
    choices = [*(schema.get("anyOf") or []), *(schema.get("oneOf") or [])]
    return "string" in (types if isinstance(types, list) else [types]) or any(map(_takes_text, choices))


def _from_assistant(message: str | Message) -> Message:
    """A message of the assistant as chat templates take it."""
    if isinstance(message, str):
        return {"role": "assistant", "content": message}
    content = message.get("content") or ""
    if message.get("tool_calls"):
        return {**message, **call_message(read_calls_of(message), content)}
    return {**message, "content": content}
