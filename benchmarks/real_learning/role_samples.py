# SPDX-License-Identifier: Apache-2.0

"""Samples of the roles that a teacher writes in messages, to warm up a model that cannot play them."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from benchmarks.tiny_run import StubGenerator, byte_tokenizer
from trl_nlac import NLACPrompts
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.plain_text import PlainText
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.generation.generator import Completion
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.refinement import refine_attempts, sample_attempts
from trl_nlac.method.roles import Roles
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.types import Answer, Message, Transition


_START, _END = "<|im_start|>", "<|im_end|>"
_TEMPLATE = (
    "{% for message in messages %}" + _START + "{{ message.role + '\n' + message.content }}" + _END + "{% endfor %}"
    "{% if add_generation_prompt %}" + _START + "assistant\n{% endif %}"
)


def transcript_tokenizer() -> PreTrainedTokenizerBase:
    """Make a tokenizer of bytes, whose conversations can be read back as messages by [`read_transcript`]."""
    return byte_tokenizer(_TEMPLATE, bos_token=_START, eos_token=_END, pad_token=_END)


def read_transcript(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> list[Message]:
    """Read the messages of a conversation in tokens of [`transcript_tokenizer`], without the opening of an answer."""
    messages, start = [], None
    for i, token_id in enumerate(token_ids):
        if token_id == tokenizer.bos_token_id:
            start = i + 1
        elif token_id == tokenizer.eos_token_id:
            role, _, content = tokenizer.decode(token_ids[start:i]).partition("\n")
            messages.append({"role": role, "content": content})
    return messages


class TranscriptGenerator(StubGenerator):
    """Lets a teacher answer conversations in tokens of [`transcript_tokenizer`]."""

    max_model_length = math.inf

    def __init__(self, said: Callable[[list[Message]], str], tokenizer: PreTrainedTokenizerBase):
        self.said = said
        self.tokenizer = tokenizer
        self._text = PlainText(tokenizer)

    def answer(self, prompt: list[int]) -> Completion:
        last = len(prompt) - prompt[::-1].index(self.tokenizer.bos_token_id)
        begun = self.tokenizer.decode(prompt[last:]).partition("\n")[2]  # of a critique
        text = self.said(read_transcript(self.tokenizer, prompt)).removeprefix(begun)
        return Completion([*self._text.encode(text), self.tokenizer.eos_token_id], True)


def chat_roles(answer: Callable[[list[Message]], str], prompts: NLACPrompts, options: RoleOptions) -> Roles:
    """Let a teacher play the roles in messages. The length of prompts is its own matter."""
    tokenizer = transcript_tokenizer()
    options = replace(options, max_prompt_length=None, reasoning=False)
    return Roles(TranscriptGenerator(answer, tokenizer), ChatEncoder(tokenizer), prompts, options)


def play_transitions(
    roles: Roles, pool: EnvironmentPool, tasks: list[dict], number: int, seed: int = 0
) -> list[Transition]:
    """Play tasks in random order, again and again, until there are `number` transitions."""
    torch.manual_seed(seed)
    rng, transitions = random.Random(seed), []
    while len(transitions) < number:
        drawn = rng.sample(tasks, min(len(tasks), number - len(transitions)))
        episodes = play_episodes(pool, drawn, roles)
        transitions += [transition for episode in episodes for transition in episode.transitions]
    return rng.sample(transitions, number)


def sound_answers(roles: Roles, transitions: list[Transition]) -> dict[str, list[Answer]]:
    """
    Ask every role about transitions, as an iteration of training does, and keep the sound answers, by role: all that
    can be read, but of the refined actions only those that do as their critique says.
    """
    answers: dict[str, list[Answer]] = {}
    ask = roles.ask

    def noted(role: str, *args, **kwargs) -> list[Answer]:
        found = ask(role, *args, **kwargs)
        answers.setdefault(role, []).extend(answer for answer in found if answer.parsed is not None)
        return found

    roles.ask = noted
    try:
        bellman_targets(roles, transitions, "explicit")
        refinements = refine_attempts(roles, sample_attempts(roles, transitions))
    finally:
        roles.ask = ask
    compliant = [r.refined_action for r in refinements if r is not None and r.complies and not r.is_kept]
    return {**answers, "refine": compliant}


def write_samples(roles: Roles, transitions: list[Transition]) -> Dataset:
    """Write the [`sound_answers`] as rows: `role`, and the conversational columns `prompt` and `completion`."""
    tokenizer = roles.chat.tokenizer
    return Dataset.from_list(
        [
            {
                "role": role,
                "prompt": read_transcript(tokenizer, answer.prompt.ids),
                "completion": [{"role": "assistant", "content": answer.text}],
            }
            for role, found in sound_answers(roles, transitions).items()
            for answer in found
        ]
    )
