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

"""Logged conversations as episodes, for the replay buffer."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset

from ..environments.pool import NO_TASK
from ..method.roles import Roles
from ..nlac_config import NLACConfig
from ..replay.buffer import PrioritizedReplay
from ..types import Episode
from .conversations import problem_of, record_conversation


def episodes_from_logs(
    dataset: Dataset, roles: Roles, rank: int = 0, world_size: int = 1, max_prompt_length: int | None = None
) -> list[Episode]:
    """
    Episodes of logged conversations, by whatever agent.

    Args:
        dataset ([`~datasets.Dataset`]):
            With the columns `messages` (chat messages of the roles `system`, `user`, `assistant` and `tool`, as OpenAI's
            interface has them) and `reward` (the final score). A column `terminated` of `False` marks a conversation that was
            cut, `tools` holds JSON schemas of the tools, `task` the JSON of a dataset's row.
        roles ([`Roles`]):
            How conversations are encoded and actions are read.
        rank (`int`, *optional*, defaults to `0`), world_size (`int`, *optional*, defaults to `1`):
            Whose share of the rows to read, of how many.
        max_prompt_length (`int`, *optional*):
            Number of tokens of a state, to which a longer history is cut.

    Returns:
        `list[Episode]`: one for each row.

    Raises:
        ValueError: If rows are malformed or too long; the message names the first ones by number and reason.
    """
    missing = {"messages", "reward"} - set(dataset.column_names)
    if missing:
        raise ValueError(f"`replay_dataset` has no column `{min(missing)}`; its columns are {dataset.column_names}.")
    episodes, malformed = [], []
    for i in range(rank, len(dataset), world_size):
        row = dataset[i]
        problem = _problem(row)
        if problem is None:
            try:
                episodes.append(_episode(row, roles, max_prompt_length))
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            malformed.append(f"row {i}: {problem}")
    if malformed:
        raise ValueError(
            f"{len(malformed)} of {len(range(rank, len(dataset), world_size))} rows of `replay_dataset` are malformed. "
            f"The first ones: {'; '.join(malformed[:5])}."
        )
    return episodes


def fill_from_logs(replay: PrioritizedReplay, dataset: Dataset, roles: Roles, args: NLACConfig) -> None:
    """
    Store a process's share of logged conversations.

    Raises:
        ValueError: If rows are malformed, or do not fit into the buffer.
    """
    episodes = episodes_from_logs(dataset, roles, args.process_index, args.world_size, args.max_prompt_length)
    number = sum(len(episode.turns) for episode in episodes)
    if number > args.replay_buffer_size:
        raise ValueError(
            f"`replay_dataset` has {number} transitions for this process, `replay_buffer_size` is "
            f"{args.replay_buffer_size}. Make it larger, or select rows."
        )
    replay.add(episodes)


def offline_tasks(
    replay_dataset: Dataset | None, train_dataset: Dataset | None, reward_funcs: Any, world_size: int = 1
) -> Dataset:
    """
    A row for each logged conversation, so that an epoch is as long as if they had been played.

    Raises:
        ValueError: If there are no logs, or none for one of the processes, or what only an environment can use.
    """
    if replay_dataset is None or len(replay_dataset) == 0:
        raise ValueError(
            "There is nothing to learn from: give an `environment_factory` to play in, or a `replay_dataset` of logs."
        )
    if len(replay_dataset) < world_size:
        raise ValueError(
            f"`replay_dataset` has {len(replay_dataset)} rows for {world_size} processes, and each learns from its own. Give "
            "more, or start fewer processes."
        )
    for name, value in (("train_dataset", train_dataset), ("reward_funcs", reward_funcs)):
        if value is not None:
            raise ValueError(
                f"`{name}` is for playing, and there is no `environment_factory`. Leave it out, or give one."
            )
    return Dataset.from_list([NO_TASK]).select([0] * len(replay_dataset))


def tools_of_logs(dataset: Dataset) -> list[dict[str, Any]]:
    """JSON schemas of all tools of logged conversations, each once."""
    if "tools" not in dataset.column_names:
        return []
    schemas = {json.dumps(tool, sort_keys=True): tool for tools in dataset["tools"] for tool in _tools(tools)}
    return list(schemas.values())


def _problem(row: dict[str, Any]) -> str | None:
    problem = problem_of(row["messages"])
    if problem is None and not any(message["role"] == "assistant" for message in row["messages"]):
        problem = "the assistant says nothing"
    if problem is None and (not isinstance(row["reward"], (int, float)) or not np.isfinite(row["reward"])):
        problem = f"the reward is {row['reward']}"
    return problem


def _episode(row: dict[str, Any], roles: Roles, max_prompt_length: int | None) -> Episode:
    messages = [{name: value for name, value in message.items() if value is not None} for message in row["messages"]]
    recorder = record_conversation(messages, roles, _tools(row.get("tools")), max_prompt_length)
    recorder.add_reward(float(row["reward"]))
    terminated = bool(row.get("terminated", True))
    return replace(
        recorder.episode(),
        task=json.loads(row.get("task") or "{}"),
        terminated=terminated,
        truncated=not terminated,
        is_log=True,
    )


def _tools(tools: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Schemas of a row's column `tools`, as TRL's datasets have them: JSON or the objects themselves."""
    return json.loads(tools) if isinstance(tools, str) else tools or []
