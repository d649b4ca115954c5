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

"""The values that flow through algorithm 1: task row -> Episode -> Transition -> Sample -> Example -> batch."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Turn:
    """
    One step of an [`Episode`]: the action `a_t`, the observation that answered it and the reward.

    Args:
        prompt_length (`int`):
            Number of leading tokens of [`Episode.token_ids`] that render the state `s_t`, up to and including the
            generation prompt.
        action_length (`int`):
            Number of tokens after `prompt_length` that the policy sampled as `a_t`, end-of-turn token included.
        action (`str`):
            The action as the environment received it (for ReAct, without the thought).
        next_observation (`str`):
            What the environment answered. It is not part of any prompt that predicts it.
        reward (`float`):
            Reward of this step.
    """

    prompt_length: int
    action_length: int
    action: str
    next_observation: str
    reward: float


@dataclass(frozen=True, eq=False)
class Episode:
    """
    One interaction with an environment. Its tokens are stored once: every state is a prefix of `token_ids`.

    Args:
        task (`dict[str, Any]`):
            Row of the dataset that started the episode.
        first_observation (`str`):
            What `reset` returned.
        token_ids (`np.ndarray` of shape `(length,)` and dtype `int32`):
            The whole conversation, from the first prompt to the last action, with actions exactly as sampled.
        turns (`tuple[Turn, ...]`):
            The steps in order.
        terminated (`bool`):
            The task itself ended: the score is final and nothing is bootstrapped from the last step.
        truncated (`bool`):
            The episode was cut (turn limit, length limit, failed environment): the last step still bootstraps.
        failure (`str`, *optional*):
            What went wrong in the environment, if anything. A failure truncates.
    """

    task: dict[str, Any]
    first_observation: str
    token_ids: np.ndarray
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    failure: str | None = None

    @property
    def score(self) -> float:
        """Return of the episode: the sum of its rewards, `r(s_T)` of the paper where only the last step pays."""
        return float(sum(turn.reward for turn in self.turns))


@dataclass(frozen=True)
class Transition:
    """One step `(s_t, a_t, r_t, s_{t+1})`, as an index into its episode."""

    episode: Episode
    index: int

    @property
    def turn(self) -> Turn:
        return self.episode.turns[self.index]

    @property
    def is_last(self) -> bool:
        return self.index == len(self.episode.turns) - 1

    @property
    def terminated(self) -> bool:
        """Whether this very step ended the task. Only then is the score known and nothing bootstrapped."""
        return self.is_last and self.episode.terminated

    @property
    def state(self) -> "Prompt":
        """`s_t` as the policy saw it."""
        return Prompt(self.episode.token_ids, self.turn.prompt_length)

    @property
    def state_action(self) -> "Prompt":
        """`(s_t, a_t)`, the prefix that critic, backup and refinement prompts extend."""
        return Prompt(self.episode.token_ids, self.turn.prompt_length + self.turn.action_length)


@dataclass(frozen=True, eq=False)
class Prompt:
    """
    Token ids kept as a shared trunk and a private branch, so that samples of one episode stay a forest.

    Args:
        trunk (`np.ndarray` of shape `(length,)`):
            Tokens shared with other prompts, by reference.
        trunk_length (`int`):
            How many leading tokens of the trunk belong to this prompt.
        branch (`tuple[int, ...]`):
            Tokens that follow the trunk in this prompt only.
    """

    trunk: np.ndarray
    trunk_length: int
    branch: tuple[int, ...] = ()

    @property
    def ids(self) -> list[int]:
        return self.trunk[: self.trunk_length].tolist() + list(self.branch)

    @property
    def last_id(self) -> int:
        return self.branch[-1] if self.branch else int(self.trunk[self.trunk_length - 1])

    def extended(self, token_ids: list[int]) -> "Prompt":
        """This prompt with `token_ids` appended; nothing before them changes."""
        return Prompt(self.trunk, self.trunk_length, self.branch + tuple(token_ids))


@dataclass(frozen=True, eq=False)
class Answer:
    """
    What the model said in one role.

    Args:
        prompt ([`Prompt`]):
            What it was asked.
        token_ids (`tuple[int, ...]`):
            What it sampled, end-of-turn token included.
        text (`str`):
            The same, decoded without special tokens.
        parsed (`Any`):
            What the role's parser read from the text (a [`~prompts.Critique`], an action, or the text itself).
    """

    prompt: Prompt
    token_ids: tuple[int, ...]
    text: str
    parsed: Any


@dataclass(frozen=True)
class Sample:
    """A transition drawn from the replay buffer, with its stable id and importance weight."""

    transition: Transition
    transition_id: int
    weight: float


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """
    One prompt and the completion whose log-likelihood is trained.

    Args:
        loss (`str`):
            Which loss it belongs to: `"critic"` (L1, equation 5), `"policy"` (L2, equation 6) or `"rehearsal"`.
        prompt ([`Prompt`]):
            Context, not trained on.
        completion_ids (`tuple[int, ...]`):
            Trained tokens, as sampled.
        weight (`float`):
            Factor of its loss (importance weight of the replay sample).
        transition_id (`int`, *optional*):
            Transition whose priority the loss of this example sets.
    """

    loss: str
    prompt: Prompt
    completion_ids: tuple[int, ...]
    weight: float = 1.0
    transition_id: int | None = None
