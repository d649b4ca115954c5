# SPDX-License-Identifier: Apache-2.0

"""Evaluation: how well the policy acts, and how well its critic judges."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from accelerate.utils import gather_object

from ..episodes.pool import EnvironmentPool
from ..episodes.rewards import EpisodeRewards
from ..episodes.rollout import Act, play_episodes
from ..method.critic import judge_actions
from ..method.roles import Roles
from ..types import Episode, Judgement, Transition
from .metrics import (
    CriticCalibration,
    PassHatK,
    SuccessRate,
    episode_metrics,
    is_played,
    mean_over_processes,
    reward_metrics,
    tool_metrics,
    without_zero_kinds,
)
from .oracle import examine_critic


@dataclass
class Evaluation:
    """The results of an evaluation on one process."""

    means: dict[str, float]  # to be averaged over processes
    # Number of the task, and 1 or 0 for success, of each episode that was played without a failure.
    outcomes: list[tuple[int, float]]
    verdicts: list[tuple[float, float]]  # verdict score of an action, and 1 or 0 for the success of its episode
    episodes: list[Episode]
    numbers: list[int]  # number of the task of each episode
    judgements: dict[tuple[int, int], Judgement]  # of actions, by index of the episode and of the turn
    success_threshold: float  # smallest score of a successful episode


def evaluate_policy(
    environments: EnvironmentPool,
    tasks: dict[int, dict[str, Any]],
    roles: Roles,
    num_episodes: int = 1,
    num_critiques: int = 64,
    seed: int = 0,
    act: Act | None = None,
    rewards: EpisodeRewards | None = None,
    once_played: Callable[[], None] | None = None,
) -> Evaluation:
    """
    Play episodes of each task, given by its number, let the critic judge `num_critiques` of the actions, and examine
    it by as many if the world has an oracle. The seed is that of the choice of actions and probes. `act` answers
    states in place of the policy, see [`~episodes.rollout.play_episodes`]. `once_played` is called when the episodes
    have ended and before the critic judges: there processes wait for one another, because judging with sharded weights
    needs them all.
    """
    threshold = roles.options.success_threshold
    numbers = [number for number in tasks for _ in range(num_episodes)]
    act = act or partial(roles.act, sampling=roles.samplings["evaluation"])
    episodes = play_episodes(environments, [tasks[number] for number in numbers], roles, act, rewards)
    if once_played is not None:
        once_played()
    played = {i: episode for i, episode in enumerate(episodes) if is_played(episode)}
    turns = [(i, t) for i, episode in played.items() for t in range(len(episode.turns))]
    random.Random(seed).shuffle(turns)
    turns = turns[:num_critiques]
    judged = judge_actions(roles, [Transition(episodes[i], t).state_action for i, t in turns])
    judgements = {turn: judgement for turn, judgement in zip(turns, judged, strict=True) if judgement is not None}
    has_oracle = environments.oracle is not None and num_critiques
    means = examine_critic(environments, roles, num_critiques, seed) if has_oracle else {}
    return Evaluation(
        means=means,
        outcomes=[(numbers[i], float(episode.score >= threshold)) for i, episode in played.items()],
        verdicts=[
            (judgement.verdict_score, float(episodes[i].score >= threshold))
            for (i, _), judgement in judgements.items()
        ],
        episodes=episodes,
        numbers=numbers,
        judgements=judgements,
        success_threshold=threshold,
    )


def joint_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Combine the results of all processes."""
    return {
        **_success_rates(gather_object(evaluation.outcomes)),
        **without_zero_kinds(episode_metrics(evaluation.episodes, evaluation.success_threshold)),
        **mean_over_processes(evaluation.means),
        **reward_metrics(evaluation.episodes),
        **tool_metrics(evaluation.episodes),
        **_critic_calibration(gather_object(evaluation.verdicts)),
    }


def _success_rates(outcomes: list[tuple[int, float]]) -> dict[str, float]:
    """Compute the success rate with its interval, and pass^k for powers of two."""
    if not outcomes:
        return {}
    tasks, successes = zip(*outcomes, strict=True)
    rates = SuccessRate(keep_in_memory=True).compute(successes=list(successes))
    chances = PassHatK(keep_in_memory=True).compute(tasks=list(tasks), successes=list(successes))
    rates.update({f"pass^{2**i}": chances[f"pass^{2**i}"] for i in range(len(chances).bit_length())})
    return {f"episode/{name}": rate for name, rate in rates.items()}


def _critic_calibration(verdicts: list[tuple[float, float]]) -> dict[str, float]:
    """Compute how well verdict scores predicted success."""
    if not verdicts:
        return {}
    scores, successes = zip(*verdicts, strict=True)
    values = CriticCalibration(keep_in_memory=True).compute(scores=list(scores), successes=list(successes))
    return {f"critic/{name}": value for name, value in values.items()}
