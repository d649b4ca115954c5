# SPDX-License-Identifier: Apache-2.0

"""A rehearsal dataset that a model writes: its sound answers in every role."""

import random
from dataclasses import replace

import torch
from datasets import Dataset

from ..chat.encoder import ChatEncoder
from ..episodes.pool import EnvironmentPool
from ..episodes.rewards import EpisodeRewards
from ..episodes.rollout import play_episodes
from ..method.roles import Roles
from ..method.sound_answers import sound_answers
from ..options.role_options import RoleOptions
from ..prompts import NLACPrompts
from ..terminal import printable
from ..types import Transition
from .transcripts import ChatModel, TranscriptGenerator, read_transcript, transcript_tokenizer


def chat_roles(model: ChatModel, prompts: NLACPrompts, options: RoleOptions) -> Roles:
    """
    Let a chat model play the roles in messages. Without an `action_format` it is "react". The length of prompts is the
    model's own matter.

    Raises:
        ValueError: If actions are tool calls in a chat template's own format, which messages in text do not show.
    """
    if options.action_format == "tool_call":
        raise ValueError(
            "`action_format='tool_call'` has no form in plain messages. Use 'react', in which a call is written as "
            "JSON, for the dataset and for training."
        )
    tokenizer = transcript_tokenizer()
    action_format = options.action_format or "react"
    options = replace(options, action_format=action_format, max_prompt_length=None, reasoning=False)
    return Roles(TranscriptGenerator(model, tokenizer), ChatEncoder(tokenizer), prompts, options, shows_progress=True)


def play_transitions(
    roles: Roles,
    pool: EnvironmentPool,
    tasks: list[dict],
    number: int,
    seed: int = 0,
    rewards: EpisodeRewards | None = None,
) -> list[Transition]:
    """
    Play tasks in random order, again and again, until there are `number` transitions.

    Raises:
        ValueError: If there are no tasks.
        RuntimeError: If no episode has a turn.
    """
    if not tasks:
        raise ValueError("There are no tasks to play: the dataset has no rows.")
    torch.manual_seed(seed)
    rng, transitions = random.Random(seed), []
    while len(transitions) < number:
        drawn = rng.sample(tasks, min(len(tasks), number - len(transitions)))
        episodes = play_episodes(pool, drawn, roles, rewards=rewards)
        if not any(episode.turns for episode in episodes):
            failure = printable(str(episodes[0].failure))
            raise RuntimeError(f"No episode had a single turn. The first ended with: {failure}.")
        transitions += [transition for episode in episodes for transition in episode.transitions]
    return rng.sample(transitions, number)


def write_rehearsal(roles: Roles, transitions: list[Transition], bootstrap: str, num_refinements: int) -> Dataset:
    """
    Ask a model in every role about transitions, for `rehearsal_dataset`. `bootstrap` and `num_refinements` are as in
    training, and decide which questions are asked. Return the sound answers ([`~method.sound_answers.sound_answers`]):
    `role`, and the conversational columns `prompt` and `completion`.
    """
    answers = sound_answers(roles, transitions, bootstrap, num_refinements)
    tokenizer = roles.chat.tokenizer
    return Dataset.from_list(
        [
            {
                "role": role,
                "prompt": read_transcript(tokenizer, answer.prompt.ids),
                "completion": [{"role": "assistant", "content": answer.text}],
            }
            for role, found in answers.items()
            for answer in found
        ]
    )
