# SPDX-License-Identifier: Apache-2.0

"""The language critic as a reward function of TRL's trainers."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..types import Message
from .agent import NLACAgent


class CriticReward:
    """
    A process reward: an agent's critic scores each action, for the `reward_funcs` of [`~trl.GRPOTrainer`] and of other
    trainers that take TRL's reward functions.

    Each message of the assistant in a completion is judged in its context. The reward is the mean of their verdict
    scores, log P(Yes) - log P(No); `None`, which TRL leaves out, where no critique could be parsed. The share of
    critiques that could is logged as `critic_reward/format_rate`.

    Example:

    ```python
    from trl import GRPOConfig, GRPOTrainer

    from trl_nlac import CriticReward, NLACAgent

    critic = NLACAgent.from_pretrained("my-agent")
    trainer = GRPOTrainer(
        model="my-model", reward_funcs=CriticReward(critic), args=GRPOConfig(), train_dataset=dataset
    )
    ```

    Args:
        agent ([`NLACAgent`]):
            The agent. Its weights are not trained.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of the available tools.
    """

    def __init__(self, agent: NLACAgent, tools: list[dict[str, Any]] | None = None):
        self.agent = agent
        self.tools = tools
        self.__name__ = "critic_reward"

    def __call__(
        self,
        prompts: list[str | list[Message]],
        completions: list[str | list[Message]],
        log_metric: Callable[[str, float], None] | None = None,
        **kwargs,
    ) -> list[float | None]:
        """Score each completion after its prompt; `kwargs` are others that TRL passes."""
        actions = [
            (i, conversation)
            for i, pair in enumerate(zip(prompts, completions, strict=True))
            for conversation in _up_to_each_action(*pair)
        ]
        judged = []
        for i, conversation in actions:
            with suppress(ValueError):  # no conversation, or too long
                judged.append((i, self.agent.proposed(conversation, None, self.tools)))
        judgements = self.agent.critique_on([proposed for _, proposed in judged])
        scores: list[list[float]] = [[] for _ in prompts]
        for (i, _), judgement in zip(judged, judgements, strict=True):
            if judgement is not None:
                scores[i].append(judgement.verdict_score)
        if log_metric is not None and actions:
            log_metric("critic_reward/format_rate", sum(map(len, scores)) / len(actions))
        return [sum(found) / len(found) if found else None for found in scores]


def _up_to_each_action(prompt: str | list[Message], completion: str | list[Message]) -> list[list[Message]]:
    """List the conversations up to each message of the assistant in a completion."""
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    after = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    return [[*before, *after[: i + 1]] for i, message in enumerate(after) if message["role"] == "assistant"]
