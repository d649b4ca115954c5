# SPDX-License-Identifier: Apache-2.0

"""Conversations as chat messages: from messages to episodes, and back."""

import json
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Json, List, Value

from ..chat.actions import ActionFormat
from ..chat.message_reader import THOUGHTS, first_answer
from ..chat.tool_calls import call_message, format_results, format_tool_calls, read_calls_of, with_text
from ..prompts import NLACPrompts
from ..types import Episode, Message, Transition
from .recorder import Recorder


# Of conversations in a dataset. Messages are JSON: in a structure, Arrow would fill absent keys with nulls, and merge
# the types of values.
FEATURES = Features(
    {
        "messages": List(Json()),
        "reward": Value("float64"),
        "terminated": Value("bool"),
        "task": Value("string"),  # JSON
        "tools": Value("string"),  # JSON
        "first_action": Value("int64"),
    }
)


def turns_of(messages: Sequence[Message], first_action: int) -> list[tuple[int, list[Message]]]:
    """Split messages into turns, from the first action on: where each begins, the action and the replies to it."""
    starts = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first_action]
    return [(start, list(messages[start:end])) for start, end in pairwise([*starts, len(messages)])]


def record_conversation(
    messages: list[Message],
    actions: ActionFormat,
    prompts: NLACPrompts,
    tools: list[dict[str, Any]] | None = None,
    max_prompt_length: int | None = None,
    is_open: bool = False,
    first_action: int | None = None,
) -> Recorder:
    """
    Record a conversation from [`~chat.message_reader.read_conversation`] as if the policy had played it, with the
    policy's prompts. Tool calls use the chat template's own format with `action_format="tool_call"`, and JSON in the
    action otherwise. A history is cut where a state has more than `max_prompt_length` tokens. The messages after the
    last action wait for an answer if the conversation `is_open`. `first_action` is the index of the message with the
    first action; if `None`, it is the assistant's first after a user's. Raise a `ValueError` if a state is too long
    although its history is cut, or the chat template cannot show a turn.
    """
    if first_action is None:
        first_action = first_answer(messages)
    recorder = Recorder(actions, prompts, {}, tools, max_prompt_length)
    recorder.begin(messages[:first_action])
    for start, (said, *replies) in turns_of(messages, first_action):
        message, action = read_action(said, actions, tools)
        is_exact = is_open or actions.chat.template.writes_json or not message.get("tool_calls")
        if not is_exact and actions.is_held(message, tools or ()) is False:
            raise ValueError(
                f"The chat template writes the calls of message {start} so that others are read back: a text in them "
                "has what ends it. Leave it out, or use `action_format='react'`."
            )
        results = [reply for reply in replies if reply["role"] == "tool"]
        words = "\n\n".join(reply["content"] for reply in replies if reply["role"] != "tool")
        if results:
            observation = format_results([result["content"] for result in results])
        else:
            observation, words = words, ""
        recorder.take(action, actions.chat.past_turn(message), observation, words=words)
        if max_prompt_length is not None and recorder.turns[-1].action_length > max_prompt_length:
            raise ValueError(
                f"An answer of {recorder.turns[-1].action_length} tokens does not fit into "
                f"`max_prompt_length={max_prompt_length}`."
            )
        end = start + 1 + len(replies)
        if replies and (is_open or end < len(messages)):
            recorder.show_observation()
            if recorder.truncated:
                raise ValueError(
                    f"The state before message {end} does not fit into `max_prompt_length={max_prompt_length}`, "
                    "although its history is cut."
                )
    return recorder


def conversation(episode: Episode, actions: ActionFormat) -> dict[str, Any]:
    """
    Write an episode as a row that [`~episodes.logs.episodes_from_logs`] reads: `messages` (without the policy's own
    prompt, and with the arguments of tool calls as JSON text), `reward`, `terminated`, `task` and `tools` in JSON, and
    `first_action`: the index of the message with the first action, where the assistant has spoken before; otherwise
    `None`. A log is written as it was read. One observation that answered several calls becomes the result of each.
    """
    messages = episode.messages
    if not messages:
        turns = [turn_messages(episode, i, actions) for i in range(len(episode.turns))]
        if turns and not episode.turns[-1].next_observation:
            del turns[-1][1:]  # an empty observation
        messages = [*episode.opening, *chain(*turns)]
    has_examples = any(message["role"] == "assistant" for message in episode.opening)
    return {
        "messages": [with_text(message) for message in messages],
        "reward": episode.score,
        "terminated": episode.terminated,
        "task": json.dumps(episode.task),
        "tools": json.dumps(episode.tools),
        "first_action": len(episode.opening) if has_examples else None,
    }


def to_dataset(episodes: Iterable[Episode], actions: ActionFormat) -> Dataset:
    """
    Write episodes as a dataset of conversations, in the form that the trainer takes as `replay_dataset`.

    Args:
        episodes (`Iterable[Episode]`):
            Episodes, for example `trainer.replay.episodes`.
        actions ([`~chat.actions.ActionFormat`]):
            The format of their actions, for example `trainer.roles.actions`.
    """
    return dataset_of([conversation(episode, actions) for episode in episodes])


def dataset_of(rows: list[dict[str, Any]]) -> Dataset:
    """Make a dataset of rows from [`conversation`]."""
    columns = {name: [row[name] for row in rows] for name in FEATURES}
    columns["messages"] = [[as_json(message) for message in messages] for messages in columns["messages"]]
    return Dataset.from_dict(columns, features=FEATURES)


def write_json_lines(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows from [`conversation`] as JSON lines, which [`~episodes.logs.load_logs`] reads as they are."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def as_json(message: Message) -> str:
    """Write a message as JSON that `datasets` reads back as it is; raise a `ValueError` if there is none."""
    try:
        text = json.dumps(message, ensure_ascii=False)
        text.encode()
        kept = Json().decode_example(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a message of the {message['role']} cannot be written as JSON: {error}") from error
    if json.dumps(kept) != json.dumps(message):
        raise ValueError(
            f"a message of the {message['role']} has a number that `datasets` does not keep: write it as text"
        )
    return text


def turn_messages(episode: Episode, index: int, actions: ActionFormat) -> list[Message]:
    """Write a turn as messages. A log stays as it was read, but for calls that the policy writes in words."""
    if episode.messages:
        _, logged = turns_of(episode.messages, len(episode.opening))[index]
        if actions.calls_tools or not logged[0].get("tool_calls"):
            return logged
    turn, token_ids = episode.turns[index], list(Transition(episode, index).action_ids)
    message = actions.message(turn.action, actions.chat.decode(token_ids), token_ids)
    return [message, *actions.replies(turn.action, turn.next_observation, turn.words)]


def read_action(
    message: Message, actions: ActionFormat, tools: Sequence[dict[str, Any]] | None = None
) -> tuple[Message, str]:
    """Read an assistant's message as the policy would have written it, with its thought, and the action in it."""
    field = actions.chat.template.reasoning_field
    thoughts = [message[name] for name in (field, *THOUGHTS) if message.get(name)]
    thought = {field: thoughts[0]} if thoughts else {}
    calls = read_calls_of(message)
    if not calls:
        text = message["content"]
        return {"role": "assistant", "content": text} | thought, actions.parse(text, tools or ()) or text
    action = format_tool_calls(calls)
    content = message["content"]
    if actions.calls_tools:
        return call_message(calls, content) | thought, action
    return {"role": "assistant", "content": actions.text(action, " ".join(content.split()))} | thought, action
