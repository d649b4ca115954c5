# SPDX-License-Identifier: Apache-2.0

"""A chat template, taken apart once: the tokens that it puts around messages."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonprefix
from typing import Any

import regex
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..private_names import add_response_schema, supports_tool_calling
from ..types import Message
from .plain_text import NULL, PlainText, mapped
from .template_trial import refuse_endless
from .tool_calls import call_message


# How templates mark a chain of thought: its start, and its end where the content begins.
_REASONING_TAGS = (
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    ("<|channel>thought\n", "<channel|>"),
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)
# Fields of messages from which templates read a chain of thought.
_REASONING_FIELDS = ("reasoning_content", "thinking")


# What response templates drop of calls in markup: white space around values, and names with more than letters.
_EXACT = {
    r">\s*(?P<value>.*?)\s*</": r">\n?(?P<value>.*?)\n?</",
    r"(?P<name>\w+)": r"(?P<name>[^\s(){}\[\]<>,'\"]+)",
    r"(?P<key>\w+)": r"(?P<key>[^\s(){}\[\]<>,'\"=]+)",
}


@dataclass(frozen=True)
class Piece:
    """What a template puts after a text: white space, which is encoded together with the text, and tokens after it."""

    space: str
    token_ids: list[int]


@dataclass(frozen=True)
class Scaffold:
    """What a template puts around texts: tokens before the first, and a piece after each."""

    before: list[int]
    pieces: list[Piece]


@dataclass(frozen=True)
class ToolScaffold:
    """What a template puts around the results of tools."""

    scaffold: Scaffold
    as_json: bool  # whether the template writes results as JSON strings
    keeps_reasoning: bool  # whether the call keeps its chain of thought


class ChatTemplate:
    """
    The scaffold of a chat template: the tokens around messages, learned from a few rendered conversations. Raise a
    `ValueError` if the tokenizer has no chat template, or one under which earlier turns change as a conversation
    grows.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, kwargs: dict[str, Any]):
        if tokenizer.chat_template is None:
            raise ValueError(
                "The tokenizer (`processing_class`) has no chat template, which the roles of NLAC need. Set "
                "`tokenizer.chat_template`, or start from an instruction-tuned model."
            )
        refuse_endless(tokenizer, kwargs)
        self.tokenizer = tokenizer
        self.kwargs = kwargs
        self.plain_text = PlainText(tokenizer)
        self.scaffold = lru_cache(maxsize=1024)(self._cut_scaffold)
        self.tool_scaffold = lru_cache(maxsize=1024)(self._cut_tool_scaffold)
        added = tokenizer.added_tokens_decoder.items()
        self._tag_ids = {*tokenizer.all_special_ids, *(i for i, token in added if token.content.strip())}
        try:
            self._learn()
        except TemplateError as error:
            raise ValueError(f"The chat template of the tokenizer (`processing_class`) raises: {error}") from error

    def render(self, messages: list[Message], tools: list[dict] | None = None, is_open: bool = True, **more) -> str:
        """Render a conversation as text; with `is_open`, up to the model's answer. `more` are more arguments."""
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=is_open, **{**self.kwargs, **more}
            )
            text.encode()  # no half of a character
        except (MemoryError, TemplateError):
            raise
        except Exception as error:  # of the template's own code
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        return text

    def encode(self, text: str) -> list[int]:
        """Encode text of the template itself, with its tags."""
        return self.plain_text.encode_rendered(text)

    def fit(self, messages: list[Message]) -> list[Message]:
        """Fit messages to the template: without a system role its content goes to the user, equal neighbours join."""
        if messages[0]["role"] == "system" and not self._takes_system:
            messages = [{**messages[0], "role": "user"}, *messages[1:]]
        elif self._takes_repeats:
            return messages
        fitted: list[Message] = []
        for message in messages:
            if fitted and fitted[-1]["role"] == message["role"]:
                content = f"{fitted[-1]['content']}\n\n{message['content']}"
                fitted[-1] = {**fitted[-1], "content": content}
            else:
                fitted.append(message)
        return fitted

    def check_tools(self, tools: Iterable[dict[str, Any]]) -> None:
        """Raise a `ValueError` if the name of a tool contains a token of the tokenizer's own."""
        names = [tool.get("function", tool).get("name") for tool in tools]
        wrong = [name for name in names if isinstance(name, str) and self.plain_text.has_tag(name)]
        if wrong:
            raise ValueError(
                f"The name of the tool {wrong[0]!r} contains a token of the tokenizer (`processing_class`), so no "
                "model can call it. Rename the tool."
            )

    def piece(self, text: str) -> Piece:
        """Encode text of the template that stands after a message."""
        rest = text.lstrip()
        return Piece(text[: len(text) - len(rest)], self.encode(rest))

    def takes_several_calls(self) -> bool:
        """Whether the template shows several calls in one turn."""
        try:
            self.tool_scaffold(("NLACTOOL", "NLACTOOL"))
        except ValueError:
            return False
        return True

    def keeps_reasoning_of(self, tools: tuple[str, ...]) -> bool:
        """Whether past turns that call these tools, if any, keep their chain of thought."""
        return self.tool_scaffold(tools).keeps_reasoning if tools else self.keeps_reasoning

    def turn_scaffold(self, message: Message) -> tuple[Scaffold, list[str]]:
        """
        Cut an assistant's turn where its chain of thought and its content are, into what stands around them, after the
        opening of the turn, and those of them that the template shows in the turn. The last piece extends beyond its
        end. Raise a `ValueError` if the template cannot show the turn.
        """
        names = tuple(call["function"]["name"] for call in message.get("tool_calls") or [])
        if names and not self.calls_tools:
            raise ValueError(
                f"A turn calls {', '.join(names)}, and the chat template shows no tool calls that can be read back. "
                "Use a model whose template does, or write the calls as text."
            )
        if len(names) > 1 and not self.takes_several_calls():
            raise ValueError(
                f"The chat template shows one tool call in a turn, and a turn calls {len(names)} tools: "
                f"{', '.join(names)}. Let a turn call one tool, or use a model whose template shows several."
            )
        texts = ["content"] if self.reasoning_tags is None else [self.reasoning_field, "content"]
        fields = [name for name in texts if message.get(name)]
        marked = {"role": "assistant", "content": message["content"]}
        marked = self._thoughtful(marked | {name: _mark(1 + i) for i, name in enumerate(fields)})

        def show(calls: list[dict[str, Any]]) -> str:
            replies = [_result(call["function"]["name"], 3) for call in calls]
            if self._null:
                calls = mapped(lambda part: NULL if part is None else part, calls)
            shown = marked | {"tool_calls": calls} if calls else marked
            text = self.render([_user(0), shown, *(replies or [_user(3)])])
            return text.replace(self._null, "null") if self._null else text

        try:
            text = self.plain_text.render(show, message.get("tool_calls") or [])
        except TemplateError as error:
            if len(fields) > 1:  # the template shows one of them
                return self.turn_scaffold({**message, self.reasoning_field: ""})
            raise ValueError(f"The chat template cannot show a turn of the assistant: {error}.") from error
        text = text.partition(_mark(0))[2].partition(_mark(3))[0]
        shown = [i for i in range(len(fields)) if _mark(1 + i) in text]
        before, *pieces = _cut(text, [1 + i for i in shown])
        before_ids = self.piece(before).token_ids[len(self.opening_ids) :]
        return Scaffold(before_ids, [self.piece(piece) for piece in pieces]), [message[fields[i]] for i in shown]

    def _cut_scaffold(self, roles: tuple[str, ...], tools: str | None) -> Scaffold:
        """Encode the text before, between and after messages of these roles."""
        messages = [{"role": role, "content": _mark(i)} for i, role in enumerate(roles)]
        schemas = [_described(tool) for tool in json.loads(tools)] if tools else None
        self.check_tools(schemas or [])
        try:
            text = self.plain_text.render(lambda shown: self.render(messages, tools=shown), schemas)
        except TemplateError as error:
            raise ValueError(f"The chat template cannot render the roles {list(roles)}: {error}") from error
        before, *pieces = _cut(text, range(len(roles)))
        return Scaffold(self.encode(before), self._up_to_answer(pieces))

    def _up_to_answer(self, pieces: list[str]) -> list[Piece]:
        """Encode the text after messages, the last of which stands before an answer, without the prefill."""
        *between, last = [self.piece(piece) for piece in pieces]
        end = len(last.token_ids) - len(self.prefill)
        kept = last.token_ids[:end] if last.token_ids[end:] == self.prefill else last.token_ids
        return [*between, Piece(last.space, kept)]

    def _cut_tool_scaffold(self, tools: tuple[str, ...], has_words: bool = False) -> ToolScaffold:
        number = len(tools)
        words = [_user(1 + 2 * number)] if has_words else []

        def show(names: list[str], *after: Message) -> str:
            results = [_result(name, 1 + number + i) for i, name in enumerate(names)]
            return self.render([_user(0), _calls(*names), *results, *after])

        try:
            text = self.plain_text.render(lambda names: show(names, *words), tools)
            answered = self.plain_text.render(lambda names: show(names, _assistant(1 + 2 * number)), tools)
        except TemplateError as error:
            shown = f"calls of {', '.join(tools)}{', and a user after their results' if has_words else ''}"
            raise ValueError(f"The chat template cannot show {shown}: {error}.") from error
        before, *texts = _cut(text, range(1 + 2 * number + len(words)))[1 + number :]
        as_json = before.endswith('"') and texts[number - 1].startswith('"')
        if as_json:  # the quotes are encoded with the results
            before, texts = before.removesuffix('"'), [piece.removeprefix('"') for piece in texts]
            texts = [*(piece.removesuffix('"') for piece in texts[: number - 1]), *texts[number - 1 :]]
        before_ids = self.encode(before)
        if has_words:
            pieces = [*(self.piece(piece) for piece in texts[:number]), self.opening]
        else:
            *between, last = self._up_to_answer(texts)
            # Some templates begin a thought after a result only while they wait for an answer.
            to_past = _cut(answered, range(2 + 2 * number))[-2].removeprefix('"' if as_json else "")
            pieces = [*between, Piece(last.space, commonprefix([last.token_ids, self.piece(to_past).token_ids]))]
        return ToolScaffold(
            scaffold=Scaffold(before_ids[before_ids.index(self.call_end_id) + 1 :], pieces),
            as_json=as_json,
            keeps_reasoning=self._is_reasoning_kept(_calls("NLACTOOL"), _result("NLACTOOL", 2)),
        )

    def _shows(self, *messages: Message) -> bool:
        """Whether the template accepts messages of these roles, and shows them all."""
        try:
            text = self.render(list(messages))
        except TemplateError:
            return False
        return all(message["content"] in text for message in messages)

    def _learn(self) -> None:
        try:
            _, to_past, past_to_user, to_answer = _cut(self.render([_user(0), _assistant(1), _user(2)]), [0, 1, 2])
        except Exception as error:  # of the template's own code
            raise ValueError(
                "The chat template of the tokenizer (`processing_class`) cannot render a conversation in text and "
                f"without tools, with `chat_template_kwargs={self.kwargs}`: {error}"
            ) from error
        # In tokens, not in characters: the first ones of `<think>` and `</think>` are the same.
        past, answer = self.piece(to_past).token_ids, self.piece(to_answer).token_ids
        self.opening_ids = commonprefix([past, answer])
        # What stands between a user's message and the turn of the assistant.
        self.opening = Piece(self.piece(to_answer).space, self.opening_ids)
        self.prefill = answer[len(self.opening_ids) :]  # before sampled tokens; not in past turns
        self.header = past[len(self.opening_ids) :]  # only of past turns, after their opening
        after = self.encode(past_to_user)
        if not after or after[0] not in self._tag_ids:
            raise ValueError(
                "The chat template of the tokenizer (`processing_class`) does not end an assistant's turn with a "
                "token of its own, so the end of an action cannot be learned. Use a template that does, with a "
                "tokenizer that has this token."
            )
        # A turn of the assistant ends with the former within a conversation; the latter begins the user's message.
        self.end_of_turn_id, self.user_header = after[0], after[1:]
        self.stop_id = [*self._tags_after(1, _user(0), _assistant(1)), self.end_of_turn_id][0]  # ends a sampled answer
        self._takes_system = self._shows(_user(0) | {"role": "system"}, _user(1))
        self._takes_repeats = self._shows(_user(0), _user(1))
        self._learn_reasoning(to_answer)
        self._learn_tool_calls()
        # The model samples them at the end of its turn: of an answer, and of a tool call.
        self.stop_ids = list(dict.fromkeys([self.stop_id, *([self.call_end_id] if self.calls_tools else [])]))

    def _learn_reasoning(self, to_answer: str) -> None:
        text = self.tokenizer.get_chat_template()  # of several, that for conversations without tools
        self.reasoning_tags = next((t for t in _REASONING_TAGS if t[0] in text or t[1] in text), None)
        opened, closed = (to_answer.rfind(tag) for tag in self.reasoning_tags or ("", ""))
        self.starts_reasoning = opened > closed  # whether sampled tokens begin within a chain of thought
        fields = [name for name in _REASONING_FIELDS if name in text]
        self.reasoning_field, self._reads_reasoning = [*fields, *_REASONING_FIELDS][0], bool(fields)
        self.keeps_reasoning = self._is_reasoning_kept(_assistant(1), _user(2))  # in past turns
        # Whether `enable_thinking=False` stops it.
        self.can_stop_thinking = self.render([_user(0)], enable_thinking=False) != self.render([_user(0)])
        has_analysis = self.reasoning_tags == _REASONING_TAGS[0]  # the models of this template always think
        # Whether the template, with these arguments, lets the model think before it answers.
        self.thinks_by_default = self.starts_reasoning or self.can_stop_thinking or has_analysis

    def _learn_tool_calls(self) -> None:
        """Learn how a tool call begins and ends, if the template supports tools and its answers can be parsed."""
        # Text before the name of a called tool, without white space, and `header` for turns that call tools without a
        # chain of thought: with text before the call (`True`), and without.
        self.calls_tools, self.call_opener, self.call_headers = False, "", {True: [], False: []}
        # Tokens that close a call within its turn, if the template has one, and that end a turn with calls.
        self.call_close_id = self.call_end_id = self.value_pattern = None
        self.writes_json, self._null = True, ""  # the arguments of calls
        try:
            if not supports_tool_calling(self.tokenizer):
                return
        except Exception:  # of the template's own code
            return
        if self.tokenizer.response_template is None:
            try:
                add_response_schema(self.tokenizer)
            except ValueError:
                return
        self.tokenizer.response_template = _exact(self.tokenizer.response_template)
        of_calls = self.tokenizer.response_template["fields"].get("tool_calls", {})
        self.writes_json = not of_calls.get("content_args")
        for opening, closing in of_calls.get("content_args", {}).get("string_delims", []):  # Gemma 4 writes `None`
            self._null = f"{opening}{NULL}{closing}"
        if of_calls.get("content") == "xml-inline":
            # What a key and a value of a call match, if the template writes values as they are, in markup.
            self.value_pattern = regex.compile(of_calls["content_args"]["tag_pattern"], regex.DOTALL)
        result = _result("NLACTOOL", 2)
        to_call, to_result = _cut(self.render([_user(0), _calls("NLACTOOL"), result]), [0, 1, 2])[1:3]
        header, opener = self._split_header(to_call.partition("NLACTOOL")[0])
        self.call_opener = without_space(opener.partition("{")[0]) or without_space(opener)
        said = self.render([_user(0), _calls("NLACTOOL") | {"content": _mark(3)}, result]).partition(_mark(0))[2]
        said_header, _ = self._split_header(said.partition("NLACTOOL")[0].partition(_mark(3))[0])
        self.call_headers = {True: said_header or header, False: header}
        self._learn_call_end(self.encode(to_result))
        self.calls_tools = True

    def _split_header(self, text: str) -> tuple[list[int], str]:
        """Split the text before a call into the tokens of an empty chain of thought, if there is one, and the rest."""
        text = self.tokenizer.decode(self.piece(text).token_ids[len(self.opening_ids) :])
        if self.reasoning_tags is None or self.reasoning_tags[1] not in text:
            return [], text
        header, closing, rest = text.rpartition(self.reasoning_tags[1])
        space = rest[: len(rest) - len(rest.lstrip())]
        return self.encode(header + closing + space), rest

    def _learn_call_end(self, to_result: list[int]) -> None:
        """Learn the tokens that close a call and end its turn, given the tokens between a call and its result."""
        try:
            between = _cut(self.render([_user(0), _calls("NLACTOOL", "NLACTOOL")]), [0, 1, 2])[2]
        except (TemplateError, ValueError):  # the template shows one call
            between = ""
        end_of_call = len(commonprefix([to_result, self.encode(between)]))
        tags = self._tags_after(1, _user(0), _calls("NLACTOOL"), start=end_of_call)
        self.call_end_id = tags[-1] if tags else next(i for i in to_result[end_of_call:] if i in self._tag_ids)
        closing = [i for i in to_result[: to_result.index(self.call_end_id)] if i in self._tag_ids]
        self.call_close_id = closing[-1] if closing else None

    def _is_reasoning_kept(self, turn: Message, answer: Message) -> bool:
        """Whether the template still shows the chain of thought of `turn` when `answer` has followed."""
        if self.reasoning_tags is None:
            return False
        thoughtful = self._thoughtful(turn | {self.reasoning_field: "NLACTHOUGHT"})
        return "NLACTHOUGHT" in self.render([_user(0), thoughtful, answer])

    def _thoughtful(self, message: Message) -> Message:
        """Put the chain of thought of a message where the template reads it: in its field, or else in the content."""
        if self._reads_reasoning or not message.get(self.reasoning_field):
            return message
        opening, closing = self.reasoning_tags
        content = f"{opening}\n{message[self.reasoning_field]}\n{closing}\n\n{message['content']}"
        return {**message, "content": content}

    def _tags_after(self, mark: int, *messages: Message, start: int = 0) -> list[int]:
        """The tokens of the template's own after a mark in the last message, from `start` on."""
        text = self.render(list(messages), is_open=False).rpartition(_mark(mark))[2]
        return [i for i in self.encode(text)[start:] if i in self._tag_ids]


def _exact(template: Any) -> Any:
    """Change a response template so that it reads arguments as they were written, see `_EXACT`."""
    if isinstance(template, dict):
        read = {key: _exact(value) for key, value in template.items()}
        is_value = template.get("value_parser", {}).get("name") == "text"
        return {**read, "value_parser": {"name": "text", "args": {"strip": False}}} if is_value else read
    if isinstance(template, list):
        return [_exact(value) for value in template]
    if isinstance(template, str):
        for inexact, exact in _EXACT.items():
            template = template.replace(inexact, exact)
    return template


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    """Give a tool the description that some templates read without asking whether there is one."""
    if isinstance(tool.get("function"), dict):
        return {**tool, "function": _described(tool["function"])}
    return {**tool, "description": tool.get("description") or ""}


def without_space(text: str) -> str:
    """Remove all white space."""
    return "".join(text.split())


def _mark(i: int) -> str:
    return f"NLACMESSAGE{i}X"


def _user(i: int) -> Message:
    return {"role": "user", "content": _mark(i)}


def _assistant(i: int) -> Message:
    return {"role": "assistant", "content": _mark(i)}


def _result(tool: str, i: int) -> Message:
    return {"role": "tool", "name": tool, "content": _mark(i)}


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
