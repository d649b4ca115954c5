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

"""Evaluation: how well the policy acts, and what its critic knows."""

import random
from dataclasses import dataclass
from typing import Any

from .critic import critiques, verdict_scores
from .environments.pool import EnvironmentPool
from .metrics import CriticCalibration, SuccessRate, episode_metrics, played_episodes
from .nlac_config import NLACConfig
from .oracle import examine_critic
from .rewards import EpisodeRewards
from .roles import Roles
from .rollout import play_episodes
from .types import Transition


@dataclass
class Evaluation:
    """
    What one process saw in an evaluation.

    Args:
        num_episodes (`int`):
            Number of episodes.
        means (`dict[str, float]`):
            Metrics to be averaged over processes.
        successes (`list[float]`):
            1 or 0 for each episode that was played without a failure.
        verdicts (`list[tuple[float, float]]`):
            Verdict score of an action, and 1 or 0 for the success of its episode.
    """

    num_episodes: int
    means: dict[str, float]
    successes: list[float]
    verdicts: list[tuple[float, float]]


def evaluate_policy(
    environments: EnvironmentPool,
    tasks: list[dict[str, Any]],
    roles: Roles,
    args: NLACConfig,
    rewards: EpisodeRewards | None = None,
) -> Evaluation:
    """Play the tasks, let the critic judge some of what was done, and examine it if the world has an oracle."""
    episodes = play_episodes(
        environments,
        tasks,
        roles,
        args.max_turns,
        args.max_prompt_length,
        sampling=roles.samplings["evaluation"],
        rewards=rewards,
    )
    means = episode_metrics(episodes, args.success_threshold)
    played = played_episodes(episodes)
    transitions = [Transition(episode, i) for episode in played for i in range(len(episode.turns))]
    random.Random(args.seed).shuffle(transitions)
    transitions = transitions[: args.num_eval_critiques]
    answers = critiques(roles, [transition.state_action for transition in transitions])
    readable = [i for i, answer in enumerate(answers) if answer.parsed is not None]
    scores = verdict_scores(roles, [answers[i] for i in readable])
    outcomes = [float(transitions[i].episode.score >= args.success_threshold) for i in readable]
    if environments.oracle is not None and args.num_oracle_probes:
        means.update(examine_critic(environments, roles, args.num_oracle_probes, args.seed))
    return Evaluation(
        num_episodes=len(episodes),
        means=means,
        successes=[float(episode.score >= args.success_threshold) for episode in played],
        verdicts=list(zip(scores, outcomes, strict=True)),
    )


def success_rates(successes: list[float]) -> dict[str, float]:
    """Success rate with its interval, over all processes."""
    rates = SuccessRate(keep_in_memory=True).compute(successes=successes) if successes else {}
    return {f"episode/{name}": rate for name, rate in rates.items()}


def critic_calibration(verdicts: list[tuple[float, float]]) -> dict[str, float]:
    """How well verdict scores foretold success, over all processes."""
    if not verdicts:
        return {}
    scores, successes = zip(*verdicts, strict=True)
    values = CriticCalibration(keep_in_memory=True).compute(scores=list(scores), successes=list(successes))
    return {f"critic/{name}": value for name, value in values.items()}
