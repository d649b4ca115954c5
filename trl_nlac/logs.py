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

"""Conversations as episodes, for filling the replay buffer before training, and episodes as conversations."""

import json
from typing import Any

import numpy as np
from datasets import Dataset

from .roles import Roles
from .types import Episode, Turn


def episodes_from_logs(dataset: Dataset, roles: Roles) -> list[Episode]:
    """
    Episodes of logged conversations, by whatever agent.

    Args:
        dataset ([`~datasets.Dataset`]):
            With the columns `messages` (roles `system`, `user` and `assistant`, the first two at the start, then in
            turns) and `reward` (the final score). A column `terminated` of `False` marks a conversation that was cut.
        roles ([`Roles`]):
            How conversations are encoded and actions are read.

    Returns:
        `list[Episode]`: one for each row.

    Raises:
        ValueError: If rows are malformed; the message names the first ones by number and reason.
    """
    missing = {"messages", "reward"} - set(dataset.column_names)
    if missing:
        raise ValueError(f"`replay_dataset` has no column `{min(missing)}`; its columns are {dataset.column_names}.")
    episodes, malformed = [], []
    for i, row in enumerate(dataset):
        problem = _problem(row)
        if problem:
            malformed.append(f"row {i}: {problem}")
        else:
            episodes.append(_episode(row, roles))
    if malformed:
        raise ValueError(
            f"{len(malformed)} of {len(dataset)} rows of `replay_dataset` are malformed: {malformed[:5]}."
        )
    return episodes


def conversation(episode: Episode, roles: Roles) -> dict[str, Any]:
    """
    An episode as a row that [`episodes_from_logs`] takes.

    Returns:
        `dict[str, Any]`: `messages` (without the words of the policy's own prompt), `reward`, `terminated` and `task` in JSON.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": episode.first_observation}]
    for i, turn in enumerate(episode.turns):
        said = episode.token_ids[turn.prompt_end : turn.prompt_end + turn.action_length].tolist()
        messages.append(roles.said(turn.action, roles.chat.decode(said)))
        if turn.next_observation or i + 1 < len(episode.turns):
            messages += roles.heard(turn.action, turn.next_observation)
    return {
        "messages": messages,
        "reward": episode.score,
        "terminated": episode.terminated,
        "task": json.dumps(episode.task),
    }


def _problem(row: dict[str, Any]) -> str | None:
    roles = [message["role"] for message in row["messages"]]
    if roles[:1] == ["system"]:
        roles = roles[1:]
    expected = ["user", "assistant"] * (len(roles) // 2 + 1)
    if roles != expected[: len(roles)] or len(roles) < 2:
        return f"the roles {roles} are not user and assistant in turns"
    if not all(isinstance(message["content"], str) for message in row["messages"]):
        return "a content is not text"
    if not isinstance(row["reward"], (int, float)) or not np.isfinite(row["reward"]):
        return f"the reward is {row['reward']}"
    return None


def _episode(row: dict[str, Any], roles: Roles) -> Episode:
    messages = list(row["messages"])
    start = 2 if messages[0]["role"] == "system" else 1
    token_ids, turns = roles.chat.start(messages[:start]), []
    for i in range(start, len(messages), 2):
        content = messages[i]["content"]
        observation = messages[i + 1]["content"] if i + 1 < len(messages) else ""
        is_last = i + 2 >= len(messages)
        action_ids = roles.chat.past_turn(messages[i])
        reward = float(row["reward"]) if is_last else 0.0
        action = roles.parse_action(content) or content
        turns.append(Turn(len(token_ids), len(action_ids), action, observation, reward))
        token_ids += action_ids
        if not is_last:
            token_ids += roles.chat.reply(action_ids[-1], observation)
    terminated = bool(row.get("terminated", True))
    return Episode(
        task={},
        first_observation=messages[start - 1]["content"],
        token_ids=np.array(token_ids, dtype=np.int32),
        turns=tuple(turns),
        terminated=terminated,
        truncated=not terminated,
        is_log=True,
    )
