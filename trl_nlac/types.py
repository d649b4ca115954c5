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

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Turn:
    """
    One step of an [`Episode`]: the action `a_t`, the observation that answered it and the reward.

    Args:
        prompt_end (`int`):
            Where the state `s_t` ends in [`Episode.token_ids`]: with the opening of an assistant's turn.
        action_length (`int`):
            Number of tokens after `prompt_end` that are `a_t` as it stands in the conversation, end-of-turn token
            included. They are the sampled ones, but for a chain of thought that the chat template forgets.
        action (`str`):
            The action as the environment received it (for ReAct, without the thought; a tool call as JSON). Empty if
            it could not be read.
        next_observation (`str`):
            What the environment answered. It is not part of any prompt that predicts it.
        reward (`float`):
            Reward of this step.
        prompt_start (`int`, *optional*, defaults to `0`):
            Where the state `s_t` starts. Above 0 once the history was cut to keep to a maximum length.
    """

    prompt_end: int
    action_length: int
    action: str
    next_observation: str
    reward: float
    prompt_start: int = 0


FAILURE_KINDS = ("reset", "step", "reward", "observation", "timeout")  # where an environment failed, or how


@dataclass(frozen=True, eq=False)
class Episode:
    """
    One interaction with an environment. Its tokens are stored once: every state is a prefix of `token_ids`, until the
    history is cut, when `token_ids` goes on with the cut history.

    Args:
        task (`dict[str, Any]`):
            Row of the dataset that started the episode.
        opening (`tuple[dict[str, Any], ...]`):
            What `reset` returned, as messages; the words of the policy's own prompt are not in them.
        token_ids (`np.ndarray` of shape `(length,)` and dtype `int32`):
            The whole conversation, from the first prompt to the last action.
        turns (`tuple[Turn, ...]`):
            The steps in order.
        terminated (`bool`):
            The task itself ended: the score is final and nothing is bootstrapped from the last step.
        truncated (`bool`):
            The episode was cut (turn limit, length limit, failed environment): the last step still bootstraps.
        failure (`str`, *optional*):
            What went wrong in the environment, if anything: one of `FAILURE_KINDS`, a colon, the error. A failure
            truncates.
        is_log (`bool`, *optional*, defaults to `False`):
            Whether it was read from a log, and not played here.
        tools (`tuple[dict[str, Any], ...]`, *optional*):
            JSON schemas of the tools that actions could call.
        extra (`dict[str, Any]`, *optional*):
            What reward functions noted about it, for its row in the table of episodes; the replay buffer's files leave it out.
    """

    task: dict[str, Any]
    opening: tuple[dict[str, Any], ...]
    token_ids: np.ndarray
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    failure: str | None = None
    is_log: bool = False
    tools: tuple[dict[str, Any], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def first_observation(self) -> str:
        """What the last message before the first action says; empty if `reset` failed."""
        return self.opening[-1]["content"] if self.opening else ""

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
    def observation(self) -> str:
        """What the policy observed last before it acted."""
        return self.episode.turns[self.index - 1].next_observation if self.index else self.episode.first_observation

    @property
    def state(self) -> "Prompt":
        """`s_t` as the policy saw it."""
        return Prompt(self.episode.token_ids, self.turn.prompt_end, trunk_start=self.turn.prompt_start)

    @property
    def state_action(self) -> "Prompt":
        """`(s_t, a_t)`, the prefix that critic, backup and refinement prompts extend."""
        end = self.turn.prompt_end + self.turn.action_length
        return Prompt(self.episode.token_ids, end, trunk_start=self.turn.prompt_start)

    @property
    def action_ids(self) -> tuple[int, ...]:
        """The tokens of `a_t`, which follow those of `s_t`."""
        start = self.turn.prompt_end
        return tuple(self.episode.token_ids[start : start + self.turn.action_length].tolist())


@dataclass(frozen=True, eq=False)
class Prompt:
    """
    Token ids kept as a shared trunk and a private branch, so that samples of one episode stay a forest.

    Args:
        trunk (`np.ndarray` of shape `(length,)`):
            Tokens shared with other prompts, by reference.
        trunk_end (`int`):
            Where this prompt leaves the trunk.
        branch (`tuple[int, ...]`):
            Tokens that follow the trunk in this prompt only.
        trunk_start (`int`, *optional*, defaults to `0`):
            Where this prompt starts in the trunk.
    """

    trunk: np.ndarray
    trunk_end: int
    branch: tuple[int, ...] = ()
    trunk_start: int = 0

    @classmethod
    def of(cls, token_ids: list[int]) -> "Prompt":
        """A prompt that shares nothing with others."""
        return cls(np.array(token_ids, dtype=np.int32), len(token_ids))

    @property
    def ids(self) -> list[int]:
        return self.trunk[self.trunk_start : self.trunk_end].tolist() + list(self.branch)

    @property
    def last_id(self) -> int:
        return self.branch[-1] if self.branch else int(self.trunk[self.trunk_end - 1])

    @property
    def num_tokens(self) -> int:
        return self.trunk_end - self.trunk_start + len(self.branch)

    def extended(self, token_ids: list[int]) -> "Prompt":
        """This prompt with `token_ids` appended; nothing before them changes."""
        return Prompt(self.trunk, self.trunk_end, self.branch + tuple(token_ids), self.trunk_start)


@dataclass(frozen=True, eq=False)
class Answer:
    """
    What the model said in one role.

    Args:
        prompt ([`Prompt`]):
            The conversation up to where it speaks, without the prefill of the chat template.
        token_ids (`tuple[int, ...]`):
            What it sampled, chain of thought and end-of-turn token included.
        text (`str`):
            What it said after its chain of thought, decoded without special tokens; a tool call as JSON.
        parsed (`Any`):
            What the role's parser read from the text (a [`~prompts.Critique`], an action, or the text itself).
    """

    prompt: Prompt
    token_ids: tuple[int, ...]
    text: str
    parsed: Any


@dataclass(frozen=True)
class Sample:
    """A transition drawn from the replay buffer, with its stable id, its importance weight and the priority it was drawn by."""

    transition: Transition
    transition_id: int
    weight: float
    priority: float


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """
    One prompt and the completion whose log-likelihood is trained.

    Args:
        loss (`str`):
            Which loss it belongs to: `"critic"` (L1, equation 5), `"policy"` (L2, equation 6) or `"rehearsal"`.
        prompt ([`Prompt`]):
            Context, not trained on; with the prefill of the chat template.
        completion_ids (`tuple[int, ...]`):
            Trained tokens, as sampled.
        weight (`float`):
            Factor of its loss (importance weight of the replay sample).
        transition_id (`int`, *optional*):
            Transition that it comes from; the loss of the critic sets its priority.
        teacher_prompt ([`Prompt`], *optional*):
            Context in which the target weights said the completion, where their whole distribution is the target.
    """

    loss: str
    prompt: Prompt
    completion_ids: tuple[int, ...]
    weight: float = 1.0
    transition_id: int | None = None
    teacher_prompt: Prompt | None = None

    @property
    def num_tokens(self) -> int:
        return self.prompt.num_tokens + len(self.completion_ids)
