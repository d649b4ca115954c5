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

"""Datasets for TRL's other trainers: logged actions with better ones."""

import json
import logging
from itertools import chain

from datasets import Dataset

from ..episodes.conversations import turn_messages
from ..episodes.logs import episodes_from_logs
from ..episodes.recorder import Recorder
from ..method.backup import bellman_targets
from ..method.refinement import refine_actions
from ..types import Message, Transition
from .agent import NLACAgent


logger = logging.getLogger(__name__)


def refine_logs(agent: NLACAgent, logs: Dataset) -> Dataset:
    """
    Refine every logged action in hindsight: the agent judges it knowing what followed, and chooses again.

    Args:
        agent ([`NLACAgent`]):
            Judges and refines.
        logs ([`~datasets.Dataset`]):
            Conversations with their rewards, see [`~episodes.logs.episodes_from_logs`].

    Returns:
        [`~datasets.Dataset`]: a row for each action whose judgement and refinement could be parsed: `prompt`, the
        conversation before it, `action` and `refined_action`, each an assistant's message, `critique`, `reward`, that
        of the episode, and `tools`, those that the chat template shows, in JSON. A warning gives the number of other
        actions.

    Raises:
        ValueError: If rows are malformed.
    """
    roles, length = agent.roles, agent.options.max_prompt_length
    episodes = episodes_from_logs(logs, roles.actions, roles.prompts, max_prompt_length=length)
    transitions = [Transition(episode, i) for episode in episodes for i in range(len(episode.turns))]
    with agent.generating():
        targets = bellman_targets(roles, transitions, "monte_carlo")
        refinements = refine_actions(roles, transitions, targets=dict(enumerate(targets)))
    rows = []
    for transition, refinement in zip(transitions, refinements, strict=True):
        if refinement is not None:
            episode, index = transition.episode, transition.index
            recorder = Recorder(roles.actions, roles.prompts, episode.task, list(episode.tools))
            recorder.begin(list(episode.opening))
            before = chain.from_iterable(turn_messages(episode, i, roles.actions) for i in range(index))
            refined = refinement.refined_action
            rows.append(
                {
                    "prompt": [*recorder.prompt_messages, *before],
                    "action": turn_messages(episode, index, roles.actions)[:1],
                    "refined_action": [roles.actions.message(refined.parsed, refined.text, list(refined.token_ids))],
                    "critique": refinement.critique.text,
                    "reward": episode.score,
                    "tools": json.dumps(episode.tools if roles.actions.calls_tools else []),
                }
            )
    if len(rows) < len(transitions):
        logger.warning(
            f"{len(transitions) - len(rows)} of {len(transitions)} actions are left out: their judgement or "
            "refinement could not be parsed, or they were not actions."
        )
    return Dataset.from_list(rows)


def sft_dataset(refined: Dataset) -> Dataset:
    """Select refined actions to imitate, for [`~trl.SFTTrainer`]: `prompt`, `completion` and `tools`."""
    return refined.select_columns(["prompt", "refined_action", "tools"]).rename_column("refined_action", "completion")


def preference_dataset(refined: Dataset) -> Dataset:
    """
    Pair refined actions with the logged ones, where they differ, for [`~trl.DPOTrainer`]: `prompt`, `chosen`,
    `rejected` and `tools`.
    """
    differing = [i for i, row in enumerate(refined) if _said(row["action"]) != _said(row["refined_action"])]
    pairs = refined.select(differing).select_columns(["prompt", "refined_action", "action", "tools"])
    return pairs.rename_columns({"refined_action": "chosen", "action": "rejected"})


def _said(messages: list[Message]) -> list[tuple[str, list | None]]:
    """Content and tool calls of messages, without their chains of thought."""
    return [(message["content"], message.get("tool_calls")) for message in messages]
