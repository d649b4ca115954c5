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
import logging
from dataclasses import replace
from typing import Any

from datasets import Dataset

from ..chat.actions import ActionFormat
from ..environments.pool import NO_TASK
from ..prompts import NLACPrompts
from ..types import Episode
from .conversations import problem_of, record_conversation
from .recorder import MalformedResult, Recorder, checked_reward


logger = logging.getLogger(__name__)


def episodes_from_logs(
    dataset: Dataset,
    actions: ActionFormat,
    prompts: NLACPrompts,
    rank: int = 0,
    world_size: int = 1,
    max_prompt_length: int | None = None,
) -> list[Episode]:
    """
    Read logged conversations, by any agent, as episodes.

    Args:
        dataset ([`~datasets.Dataset`]):
            With the columns `messages` (chat messages of the roles `system`, `user`, `assistant` and `tool`, in
            OpenAI's form) and `reward` (the final score). In a column `terminated`, `False` marks a conversation that
            was cut; `tools` has JSON schemas of the tools, `task` the JSON of a dataset's row.
        actions ([`~chat.actions.ActionFormat`]):
            The format of actions.
        prompts ([`NLACPrompts`]):
            The prompts; here those of the policy.
        rank (`int`, *optional*, defaults to `0`), world_size (`int`, *optional*, defaults to `1`):
            Which share of the rows to read, of how many.
        max_prompt_length (`int`, *optional*):
            Maximum number of tokens of a state, to which a longer history is cut.

    Returns:
        `list[Episode]`: one for each row.

    Texts that are too long for a prompt are shortened as in an episode that is played; a warning counts the rows.

    Raises:
        ValueError: If rows are malformed or too long; the message names the first ones by number and reason.
    """
    missing = {"messages", "reward"} - set(dataset.column_names)
    if missing:
        raise ValueError(f"`replay_dataset` has no column `{min(missing)}`; its columns are {dataset.column_names}.")
    episodes, malformed, num_shortened = [], [], 0
    for i in range(rank, len(dataset), world_size):
        row = dataset[i]
        problem = _problem(row)
        if problem is None:
            try:
                recorder = _record(row, actions, prompts, max_prompt_length)
                episodes.append(_episode(row, recorder))
                num_shortened += recorder.num_shortened > 0
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            malformed.append(f"row {i}: {problem}")
    if malformed:
        raise ValueError(
            f"{len(malformed)} of {len(range(rank, len(dataset), world_size))} rows of `replay_dataset` are "
            f"malformed. The first ones: {'; '.join(malformed[:5])}."
        )
    if num_shortened:
        logger.warning(
            f"{num_shortened} rows of `replay_dataset` have texts that are too long for `max_prompt_length="
            f"{max_prompt_length}`: their middle is left out."
        )
    return episodes


def offline_tasks(
    replay_dataset: Dataset | None, train_dataset: Dataset | None, reward_funcs: Any, world_size: int = 1
) -> Dataset:
    """
    Make a row for each logged conversation, so that an epoch is as long as if they had been played.

    Raises:
        ValueError: If there are no logs, or fewer than processes, or an argument needs an environment.
    """
    if replay_dataset is None or len(replay_dataset) == 0:
        raise ValueError(
            "There is nothing to learn from: give an `environment_factory` to play in, or a `replay_dataset` of logs."
        )
    if len(replay_dataset) < world_size:
        raise ValueError(
            f"`replay_dataset` has {len(replay_dataset)} rows for {world_size} processes, and each learns from its "
            "own. Give more, or start fewer processes."
        )
    for name, value in (("train_dataset", train_dataset), ("reward_funcs", reward_funcs)):
        if value is not None:
            raise ValueError(
                f"`{name}` is for playing, and there is no `environment_factory`. Leave it out, or give one."
            )
    return Dataset.from_list([NO_TASK]).select([0] * len(replay_dataset))


def _problem(row: dict[str, Any]) -> str | None:
    problem = problem_of(row["messages"])
    if problem is None and not any(message["role"] == "assistant" for message in row["messages"]):
        problem = "there is no message of the assistant"
    if problem is None:
        try:
            checked_reward(row["reward"])
        except MalformedResult as error:
            problem = str(error)
    return problem


def _record(
    row: dict[str, Any], actions: ActionFormat, prompts: NLACPrompts, max_prompt_length: int | None
) -> Recorder:
    messages = [{name: value for name, value in message.items() if value is not None} for message in row["messages"]]
    tools = row.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools or []  # JSON, or the objects themselves
    recorder = record_conversation(messages, actions, prompts, tools, max_prompt_length)
    recorder.add_reward(float(row["reward"]))
    return recorder


def _episode(row: dict[str, Any], recorder: Recorder) -> Episode:
    terminated = bool(row.get("terminated", True))
    return replace(
        recorder.episode(),
        task=json.loads(row.get("task") or "{}"),
        terminated=terminated,
        truncated=not terminated,
        is_log=True,
    )
