# SPDX-License-Identifier: Apache-2.0

"""Datasets for TRL's other trainers: logged actions with better ones."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from datasets import Dataset, Features, Json, List, Value

from ..chat.tool_calls import read_calls_of, with_objects, with_text
from ..episodes.conversations import as_json, turn_messages
from ..episodes.recorder import Recorder
from ..method.states import forgetful_task
from ..types import Message
from .agent import NLACAgent
from .better_actions import refine_in_hindsight
from .log_review import episodes_of


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
        of the episode, and `tools`, those that the chat template shows, in JSON. The arguments of tool calls are JSON
        text. A warning counts the other actions by reason.

    Raises:
        ValueError: If rows are malformed, or the agent's critiques weigh several futures (`num_futures`).
    """
    roles, episodes = agent.roles, episodes_of(agent, logs)
    transitions = [transition for episode in episodes for transition in episode.transitions]
    with agent.generating():
        targets, refinements = refine_in_hindsight(roles, transitions)
    rows, left_out = [], Counter()
    for transition, target, refinement in zip(transitions, targets, refinements, strict=True):
        if refinement is None:
            left_out["refinement" if target.parsed else "judgement"] += 1
            continue
        episode, index = transition.episode, transition.index
        recorder = Recorder(roles.actions, roles.prompts, episode.task, list(episode.tools))
        if roles.actions.keeps_history or not index:
            recorder.begin(list(episode.opening))
            before = chain.from_iterable(turn_messages(episode, i, roles.actions) for i in range(index))
        else:
            recorder.begin(forgetful_task(list(episode.opening), transition.observation))
            before = ()
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
    if left_out:
        counts = " and ".join(f"{number} whose {what} could not be parsed" for what, number in left_out.items())
        logger.warning(f"Of {len(transitions)} actions, {left_out.total()} are left out: {counts}.")
    features = {"critique": Value("string"), "reward": Value("float64"), "tools": Value("string")}
    return _dataset_of(rows, ["prompt", "action", "refined_action"], with_text, features)


def sft_dataset(refined: Dataset) -> Dataset:
    """
    Select refined actions to imitate, for [`~trl.SFTTrainer`]: `prompt`, `completion` and `tools`. The arguments of
    tool calls are objects, as chat templates take them. A warning counts the rows with numbers in them that `datasets`
    does not keep, which are left out.
    """
    return _for_trainers(refined, {"prompt": "prompt", "refined_action": "completion"})


def preference_dataset(refined: Dataset) -> Dataset:
    """
    Pair refined actions with the logged ones, where they differ, for [`~trl.DPOTrainer`]: `prompt`, `chosen`,
    `rejected` and `tools`. Arguments and left out rows as in [`sft_dataset`].
    """
    differing = [i for i, row in enumerate(refined) if _said(row["action"]) != _said(row["refined_action"])]
    columns = {"prompt": "prompt", "refined_action": "chosen", "action": "rejected"}
    return _for_trainers(refined.select(differing), columns)


def _said(messages: list[Message]) -> str:
    """Content and tool calls of messages, without their chains of thought and ids, as text that tells 1 from 1.0."""
    said = [(message.get("content") or "", read_calls_of(message)) for message in messages]
    return json.dumps(said, sort_keys=True)


def _for_trainers(refined: Dataset, columns: dict[str, str]) -> Dataset:
    """Select columns of messages under new names, with the arguments of tool calls as objects, and `tools`."""
    rows, problems = [], []
    for row in refined:
        try:
            for name in columns:
                for message in row[name]:
                    as_json(with_objects(message))
        except ValueError as error:
            problems.append(str(error))
        else:
            rows.append({**{new: row[name] for name, new in columns.items()}, "tools": row["tools"]})
    if problems:
        logger.warning(f"Of {len(refined)} rows, {len(problems)} are left out. The first one: {problems[0]}.")
    return _dataset_of(rows, list(columns.values()), with_objects, {"tools": Value("string")})


def _dataset_of(
    rows: list[dict[str, Any]],
    conversations: list[str],
    form: Callable[[Message], Message],
    features: dict[str, Value],
) -> Dataset:
    """Make a dataset of rows, with the messages in the columns `conversations` in a form of tool calls, as JSON."""
    columns = {name: [[as_json(form(message)) for message in row[name]] for row in rows] for name in conversations}
    columns |= {name: [row[name] for row in rows] for name in features}
    return Dataset.from_dict(columns, Features({**{name: List(Json()) for name in conversations}, **features}))
