# SPDX-License-Identifier: Apache-2.0

"""What an agent returns: actions, and checks of actions."""

from dataclasses import dataclass, field

from ..types import Judgement, Message


@dataclass(frozen=True)
class AgentAction:
    """
    An action of an agent.

    Args:
        action (`str` or `None`):
            The action as an environment takes it; a tool call as JSON. `None` if the answer is not an action.
        text (`str`):
            The answer without a chain of thought.
        thought (`str`):
            The chain of thought, or the thought of a ReAct answer.
        message (`dict[str, Any]`):
            The answer as a message, with which the conversation continues.
        token_ids (`tuple[int, ...]`):
            The answer as it was sampled.
        judgement ([`~types.Judgement`], *optional*):
            The critic's judgement of the action. It is there if the action was chosen among candidates, if refinement
            ended at it, or if it was asked for.
        attempts (`list[tuple[str, Judgement]]`):
            Actions that were refined, with the critic's judgement of each.
        candidates (`list[tuple[str, Judgement | None]]`):
            Actions among which it was chosen.
        finished (`bool`):
            Whether the answer ended before the limit of its tokens.
    """

    action: str | None
    text: str
    thought: str
    message: Message
    token_ids: tuple[int, ...]
    judgement: Judgement | None = None
    attempts: list[tuple[str, Judgement]] = field(default_factory=list)
    candidates: list[tuple[str, Judgement | None]] = field(default_factory=list)
    finished: bool = True


@dataclass(frozen=True)
class Check:
    """
    Whether an action passes the critic.

    Args:
        passed (`bool`):
            Whether the score is above the threshold. An action that the critic could not judge does not pass.
        verdict (`bool` or `None`):
            Whether the critic calls the action optimal; `None` if its answer could not be parsed.
        reason (`str`):
            The critique.
        score (`float` or `None`):
            log P(Yes) - log P(No) of the verdict.
    """

    passed: bool
    verdict: bool | None
    reason: str
    score: float | None

    @classmethod
    def of(cls, judgement: Judgement | None, threshold: float) -> "Check":
        """Compare a judgement, if there is one, with a threshold."""
        if judgement is None:
            return cls(False, None, "The critic's answer could not be parsed.", None)
        passed = judgement.verdict_score > threshold
        return cls(passed, judgement.verdict, judgement.critique, judgement.verdict_score)
