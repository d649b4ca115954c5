# SPDX-License-Identifier: Apache-2.0

"""What this package writes itself: tables of episodes, exported conversations and replay buffers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Json

from ..chat.actions import ActionFormat, parse_react
from ..chat.tool_calls import parse_tool_calls
from ..episodes.conversations import conversation
from ..replay.files import read_episodes
from .chat import read_conversations
from .logged import LoggedConversations, listed


_BUFFER = {"token_ids", "turns", "opening"}
_TABLE = {"prompt", "turns", "return"}
_FAILED = "its environment failed, so that its return is no outcome"
_CALLS = "a table of episodes has no tool calls: name a checkpoint of the run, whose replay buffer has them"


def read_parquet(
    path: Path, outcome: str | None, load_actions: Callable[[Path], ActionFormat], found: LoggedConversations
) -> str:
    """
    Read a parquet file of this package, or of conversations, and return the format in words. `outcome` is the column
    with the outcome; `load_actions` loads the format of actions of a buffer, which has tokens. Raise a `ValueError` if
    it is neither, or damaged.
    """
    try:
        columns = set(pq.read_schema(path).names)
        if _BUFFER <= columns:
            _read_buffer(path, load_actions(path), found)
            return "replay buffer of trl_nlac"
        rows = pq.read_table(path).to_pylist() if "messages" in columns or _TABLE <= columns else None
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not a parquet file that can be read: {error}") from error
    if rows is None:
        raise ValueError(f"{path} has neither `messages` nor episodes; its columns are {listed(sorted(columns))}.")
    if _TABLE <= columns:
        for row in rows:
            try:
                _add_episode(row, found)
            except (KeyError, TypeError, AttributeError):
                found.refuse("an episode does not have the columns of a table of episodes")
        return "table of episodes of trl_nlac"
    read_conversations((_conversation(row, found) for row in rows), outcome, found)
    return "exported conversations"


def _read_buffer(path: Path, actions: ActionFormat, found: LoggedConversations) -> None:
    for stored in read_episodes(path):
        row = conversation(stored.episode, actions)
        if stored.episode.failure is not None:
            found.refuse(_FAILED)
        elif row["messages"] and stored.episode.turns:
            found.add(row)
        else:
            found.refuse("the episode has no turn")


def _add_episode(row: dict[str, Any], found: LoggedConversations) -> None:
    if row.get("failure") is not None:
        found.refuse(_FAILED)
        return
    if any(_is_call(turn["text"] or "", turn["action"] or "") for turn in row["turns"] or []):
        found.refuse(_CALLS)
        return
    messages = [{"role": "user", "content": row["prompt"] or ""}]
    for turn in row["turns"] or []:
        messages.append({"role": "assistant", "content": turn["text"] or turn["action"] or ""})
        messages.append({"role": "user", "content": turn["next_observation"] or ""})
    if len(messages) > 1 and not messages[-1]["content"]:
        del messages[-1]
    ended = {"terminated": bool(row.get("terminated")), "task": row.get("task") or None}
    found.add({"messages": messages, "reward": row["return"], **ended})


def _is_call(text: str, action: str) -> bool:
    """Whether an action is a tool call that its text has in a chat template's markup, which is no plain text."""
    return bool(parse_tool_calls(action)) and parse_react(text) is None and text.strip() != action.strip()


def _conversation(row: dict[str, Any], found: LoggedConversations) -> dict[str, Any]:
    """Messages are JSON in what the package exports, see [`~episodes.conversations.FEATURES`], or structures."""
    kept = {name: _without_padding(value) for name, value in row.items()}
    if _calls_and_tools(kept) != _calls_and_tools(row):
        found.notes["nulls in tool calls or `tools` are taken for absent keys: Arrow fills structures so"] += 1
    messages = row["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, str) for message in messages):
        return kept
    try:
        return {**kept, "messages": [Json().decode_example(message) for message in messages]}
    except ValueError:
        return kept  # which is refused for its messages


def _without_padding(value: Any) -> Any:
    """Drop nulls from structures, which Arrow fills with them where keys are absent; other dicts it does not have."""
    if isinstance(value, dict):
        return {name: _without_padding(part) for name, part in value.items() if part is not None}
    return [_without_padding(part) for part in value] if isinstance(value, list) else value


def _calls_and_tools(row: dict[str, Any]) -> tuple[list[Any], Any]:
    messages = row["messages"] if isinstance(row["messages"], list) else []
    return [message.get("tool_calls") for message in messages if isinstance(message, dict)], row.get("tools")
