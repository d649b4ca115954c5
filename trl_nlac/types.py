# SPDX-License-Identifier: Apache-2.0

"""The values that flow through algorithm 1: task row -> Episode -> Transition -> Sample -> TrainingExample."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np


Message = dict[str, Any]  # {"role": ..., "content": ...}, and `tool_calls` of an assistant or the `name` of a tool

SPEAKERS = ("system", "user", "assistant", "tool")  # the roles of messages
LOSSES = ("critic", "policy")  # the losses of training examples
FAILURE_KINDS = ("reset", "step", "reward", "observation", "timeout")  # where an environment failed, or how


def text_of(message: Message) -> str | None:
    """The text of a message; `None` if its content is neither text nor parts of text, each on lines of its own."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text", part.get("refusal")) if isinstance(part, dict) else part for part in content]
        content = "\n".join(parts) if all(isinstance(part, str) for part in parts) else None
    return content if isinstance(content, str) else None


@dataclass(frozen=True)
class Turn:
    """
    One step of an [`Episode`]: the action `a_t`, the observation that followed and the reward.

    Args:
        prompt_end (`int`):
            End of the state `s_t` in [`Episode.token_ids`], after the opening of the assistant's turn.
        action_length (`int`):
            Number of tokens after `prompt_end` that hold `a_t` as it stands in the conversation, with its end-of-turn
            token. They are the sampled tokens, without a chain of thought that the chat template drops.
        action (`str`):
            The action as the environment received it (for ReAct, without the thought; a tool call as JSON). Empty if
            it could not be parsed.
        next_observation (`str`):
            The environment's answer. It is in no prompt that predicts it.
        reward (`float`):
            Reward of this step.
        prompt_start (`int`, *optional*, defaults to `0`):
            Start of the state `s_t`. Above 0 once the history was cut to a maximum length.
        words (`str`, *optional*):
            The end of `next_observation` that a user said after the results of tools; in logs, and from agents.
    """

    prompt_end: int
    action_length: int
    action: str
    next_observation: str
    reward: float
    prompt_start: int = 0
    words: str = ""


@dataclass(frozen=True, eq=False)
class Episode:
    """
    One interaction with an environment. Its tokens are stored once: every state is a prefix of `token_ids`. Where the
    history is cut, `token_ids` continues with the cut history.
    """

    task: dict[str, Any]  # row of the dataset
    opening: tuple[Message, ...]  # messages that `reset` returned, without the policy's own prompt
    token_ids: np.ndarray  # `(length,)`, `int32`: the whole conversation, from the first prompt to the last action
    turns: tuple[Turn, ...]
    terminated: bool  # whether the task itself ended: the score is final and the last step does not bootstrap
    truncated: bool  # by a limit of turns or length, or a failure: the last step bootstraps
    failure: str | None = None  # what failed in the environment: one of `FAILURE_KINDS`, a colon, the error
    is_log: bool = False  # whether it was read from a log rather than played here
    tools: tuple[dict[str, Any], ...] = ()  # JSON schemas of the tools that actions can call
    messages: tuple[Message, ...] = ()  # the conversation of a log, as it was read
    # Values that reward functions logged, for its row in the table of episodes. Not saved with the replay buffer.
    extra: dict[str, Any] = field(default_factory=dict)
    # The other conversations of the same run of an agent, each with the same final reward: of sub-agents, or with a
    # history that was rewritten. Not saved with it, but as episodes of their own.
    segments: tuple["Episode", ...] = ()

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "Episode":
        """Make an episode of its attributes, with lists in place of tuples and of turns, as files have them."""
        lists = {name: tuple(row[name]) for name in ("opening", "tools", "messages")}
        return cls(**{**row, **lists, "turns": tuple(Turn(**turn) for turn in row["turns"])})

    @property
    def num_turns(self) -> int:
        """Number of turns of all its conversations."""
        return len(self.turns) + sum(len(segment.turns) for segment in self.segments)

    @property
    def transitions(self) -> "list[Transition]":
        """Its steps, without those of its segments."""
        return [Transition(self, i) for i in range(len(self.turns))]

    @property
    def first_observation(self) -> str:
        """Content of the last message before the first action; empty if `reset` failed."""
        return self.opening[-1]["content"] if self.opening else ""

    @property
    def score(self) -> float:
        """
        Return of the episode: the sum of its rewards, `r(s_T)` of the paper where only the last step pays. The rewards
        of its `segments` are their own, but for the final one, which all share.
        """
        return float(sum(turn.reward for turn in self.turns))


def all_conversations(episodes: Iterable[Episode]) -> list[Episode]:
    """Return episodes, each followed by its segments, which are trained on as episodes of their own."""
    found = []
    for episode in episodes:
        found += [replace(episode, segments=()), *episode.segments] if episode.segments else [episode]
    return found


@dataclass(frozen=True, eq=False)
class Prompt:
    """Token ids as a shared trunk and a private branch, so that the samples of one episode stay a forest."""

    trunk: np.ndarray  # `(length,)`, shared with other prompts, by reference
    trunk_end: int  # where this prompt leaves the trunk
    branch: tuple[int, ...] = ()  # tokens that follow the trunk in this prompt only
    trunk_start: int = 0  # where this prompt starts in the trunk
    # JSON schemas of the tools that an answer can call. The arguments of its calls are parsed by them.
    tools: tuple[dict[str, Any], ...] = ()
    opening_length: int = 0  # number of its first tokens, up to the first action, that stay where its history is cut

    @classmethod
    def of(cls, token_ids: list[int], tools: tuple[dict[str, Any], ...] = (), opening_length: int = 0) -> "Prompt":
        """Make a prompt that shares nothing with others."""
        return cls(np.array(token_ids, dtype=np.int32), len(token_ids), tools=tools, opening_length=opening_length)

    @property
    def ids(self) -> list[int]:
        """All token ids."""
        return self.trunk[self.trunk_start : self.trunk_end].tolist() + list(self.branch)

    @property
    def last_id(self) -> int:
        """The last token id."""
        return self.branch[-1] if self.branch else int(self.trunk[self.trunk_end - 1])

    @property
    def num_tokens(self) -> int:
        """Number of token ids."""
        return self.trunk_end - self.trunk_start + len(self.branch)

    def extended(self, token_ids: list[int]) -> "Prompt":
        """Append `token_ids`; nothing before them changes."""
        return replace(self, branch=self.branch + tuple(token_ids))


@dataclass(frozen=True)
class Transition:
    """One step `(s_t, a_t, r_t, s_{t+1})`, as an index into its episode."""

    episode: Episode
    index: int

    @property
    def turn(self) -> Turn:
        """The turn of the episode."""
        return self.episode.turns[self.index]

    @property
    def is_last(self) -> bool:
        """Whether it is the last step of its episode."""
        return self.index == len(self.episode.turns) - 1

    @property
    def terminated(self) -> bool:
        """Whether this step ended the task. Only then is the score known, and nothing is bootstrapped."""
        return self.is_last and self.episode.terminated

    @property
    def observation(self) -> str:
        """The last observation before the action."""
        return self.episode.turns[self.index - 1].next_observation if self.index else self.episode.first_observation

    @property
    def state(self) -> Prompt:
        """`s_t` as the policy saw it."""
        return self._prefix(self.turn.prompt_end)

    @property
    def state_action(self) -> Prompt:
        """`(s_t, a_t)`, the prefix that critic, backup and refinement prompts extend."""
        return self._prefix(self.turn.prompt_end + self.turn.action_length)

    @property
    def action_ids(self) -> tuple[int, ...]:
        """The tokens of `a_t`, which follow those of `s_t`."""
        start = self.turn.prompt_end
        return tuple(self.episode.token_ids[start : start + self.turn.action_length].tolist())

    def _prefix(self, end: int) -> Prompt:
        episode, start = self.episode, self.turn.prompt_start
        opening_length = episode.turns[0].prompt_end
        return Prompt(episode.token_ids, end, (), start, episode.tools, opening_length)


@dataclass(frozen=True)
class Sample:
    """A transition drawn from the replay buffer, with its stable id and its priority then."""

    transition: Transition
    transition_id: int
    priority: float


@dataclass(frozen=True, eq=False)
class Answer:
    """What the model generated in one role."""

    prompt: Prompt  # without the prefill of the chat template
    token_ids: tuple[int, ...]  # as sampled, with chain of thought and end-of-turn token
    # The text after the chain of thought, decoded without special tokens; a call in the chat template's own format as
    # JSON.
    text: str
    # What the role's parser made of the text (a `Critique`, an action, or the text itself); `None` if the answer
    # breaks its format or was cut off. A tool call is JSON, however it was written.
    parsed: Any
    finished: bool = True  # before the limit of tokens


@dataclass(frozen=True)
class Critique:
    """A natural language value Q_L(s, a): a possible future of an action and a verdict on it."""

    future: str  # what will happen; empty where a task is a single step
    optimal: bool | None  # the verdict; `None` where only the future was asked for (k > 1)
    advice: str = ""  # how to do better; empty where the verdict is "Yes"
    # Start and end of the verdict's words in the text that the critique was parsed from.
    verdict_span: tuple[int, int] | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The critique in its format. Advice that is a sentence, with a capital letter, follows a full stop."""
        verdict = "Yes" if self.optimal else f"No{'.' if self.advice[:1].isupper() else ''} {self.advice}".strip()
        return f"Future: {self.future}\nOptimality: {verdict}" if self.future else f"Correctness: {verdict}"

    @property
    def in_short(self) -> str:
        """The advice, or without any the verdict."""
        return self.advice or ("Yes" if self.optimal else "No")


class Judgement(NamedTuple):
    """The critic's judgement of an action: the critique, its verdict, and log P(Yes) - log P(No) of the verdict."""

    critique: str
    verdict: bool
    verdict_score: float


@dataclass(frozen=True)
class Refinement:
    """An action and its refinement."""

    action: str  # a fresh a_t ~ pi_theta(. | s_t), or the stored one
    critique: Critique  # Q_L(s_t, a_t)
    refined_action: Answer  # a_t^r, the target of the policy loss
    is_kept: bool = False  # whether the critique calls the action the best, so that none was asked for

    @property
    def complies(self) -> bool:
        """Whether the action was kept where its verdict is "Yes", and changed where it is "No"."""
        is_kept = self.refined_action.parsed == self.action
        return is_kept == self.critique.optimal


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """One prompt and the completion whose log-likelihood is trained."""

    loss: str  # `"critic"` (L1, equation 5) or `"policy"` (L2, equation 6)
    prompt: Prompt  # not trained on, with the prefill of the chat template
    completion_ids: tuple[int, ...]  # as sampled
    weight: float = 1.0  # of its loss; 0 fills up a batch
    transition_id: int | None = None  # whose priority the critic's loss sets
    # Context in which the initial weights read the completion, where the policy learns by their distribution.
    teacher_prompt: Prompt | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens of prompt and completion."""
        return self.prompt.num_tokens + len(self.completion_ids)


class RunRefused(ValueError):
    """A run cannot start, because of what its folder or its checkpoint holds. Nothing was changed."""


class TrainingStopped(RuntimeError):
    """Training cannot continue. A checkpoint is saved before this reaches the caller."""
