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

from accelerate.utils import gather_object

from ..environments.pool import EnvironmentPool
from ..episodes.rewards import EpisodeRewards
from ..episodes.rollout import play_episodes
from ..method.critic import Judgement, judge_actions
from ..method.roles import Roles
from ..nlac_config import NLACConfig
from ..types import Episode, Transition
from .metrics import CriticCalibration, PassHatK, SuccessRate, episode_metrics, is_played, mean_over_processes
from .oracle import examine_critic


@dataclass
class Evaluation:
    """
    What one process saw in an evaluation.

    Args:
        means (`dict[str, float]`):
            Metrics to be averaged over processes.
        outcomes (`list[tuple[int, float]]`):
            Number of the task, and 1 or 0 for success, of each episode that was played without a failure.
        verdicts (`list[tuple[float, float]]`):
            Verdict score of an action, and 1 or 0 for the success of its episode.
        episodes (`list[Episode]`):
            What was played.
        numbers (`list[int]`):
            Number of the task of each.
        judgements (`dict[tuple[int, int], Judgement]`):
            What the critic said about actions, by index of the episode and of the turn.
    """

    means: dict[str, float]
    outcomes: list[tuple[int, float]]
    verdicts: list[tuple[float, float]]
    episodes: list[Episode]
    numbers: list[int]
    judgements: dict[tuple[int, int], Judgement]


def evaluate_policy(
    environments: EnvironmentPool,
    tasks: dict[int, dict[str, Any]],
    roles: Roles,
    args: NLACConfig,
    rewards: EpisodeRewards | None = None,
) -> Evaluation:
    """
    Play `num_eval_episodes` of each task, by its number, let the critic judge some of what was done, and examine it if the
    world has an oracle.
    """
    numbers = [number for number in tasks for _ in range(args.num_eval_episodes)]
    episodes = play_episodes(
        environments,
        [tasks[number] for number in numbers],
        roles,
        args.max_turns,
        args.max_prompt_length,
        sampling=roles.samplings["evaluation"],
        rewards=rewards,
    )
    means = episode_metrics(episodes, args.success_threshold) if episodes else {}
    played = {i: episode for i, episode in enumerate(episodes) if is_played(episode)}
    turns = [(i, t) for i, episode in played.items() for t in range(len(episode.turns))]
    random.Random(args.seed).shuffle(turns)
    turns = turns[: args.num_eval_critiques]
    judged = judge_actions(roles, [Transition(episodes[i], t).state_action for i, t in turns])
    judgements = {turn: judgement for turn, judgement in zip(turns, judged, strict=True) if judgement is not None}
    if environments.oracle is not None and args.num_oracle_probes:
        means.update(examine_critic(environments, roles, args.num_oracle_probes, args.seed))
    return Evaluation(
        means=means,
        outcomes=[(numbers[i], float(episode.score >= args.success_threshold)) for i, episode in played.items()],
        verdicts=[
            (judgement.verdict_score, float(episodes[i].score >= args.success_threshold))
            for (i, _), judgement in judgements.items()
        ],
        episodes=episodes,
        numbers=numbers,
        judgements=judgements,
    )


def joint_metrics(seen: Evaluation) -> dict[str, float]:
    """What all processes saw together."""
    return {
        **mean_over_processes(seen.means),
        **_success_rates(gather_object(seen.outcomes)),
        **_critic_calibration(gather_object(seen.verdicts)),
    }


def _success_rates(outcomes: list[tuple[int, float]]) -> dict[str, float]:
    """Success rate with its interval and pass^k for powers of two."""
    if not outcomes:
        return {}
    tasks, successes = zip(*outcomes, strict=True)
    rates = SuccessRate(keep_in_memory=True).compute(successes=list(successes))
    chances = PassHatK(keep_in_memory=True).compute(tasks=list(tasks), successes=list(successes))
    rates.update({f"pass^{2**i}": chances[f"pass^{2**i}"] for i in range(len(chances).bit_length())})
    return {f"episode/{name}": rate for name, rate in rates.items()}


def _critic_calibration(verdicts: list[tuple[float, float]]) -> dict[str, float]:
    """How well verdict scores foretold success."""
    if not verdicts:
        return {}
    scores, successes = zip(*verdicts, strict=True)
    values = CriticCalibration(keep_in_memory=True).compute(scores=list(scores), successes=list(successes))
    return {f"critic/{name}": value for name, value in values.items()}
