# SPDX-License-Identifier: Apache-2.0

"""The base model in the learning benchmark, without training."""

from dataclasses import replace

from accelerate import Accelerator

from benchmarks.learning.playing import Player
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig
from trl_nlac.agent.better_actions import refinement_rounds
from trl_nlac.method.refinement import Attempt
from trl_nlac.method.roles import Roles
from trl_nlac.training.model import load_model
from trl_nlac.types import Answer, Prompt


def play_base(task: LearningTask, acting: NLACConfig, refines: bool = False) -> Player:
    """Make a player of the base model, with or without one round of refinement of each action at test time."""
    accelerator = Accelerator(cpu=acting.use_cpu)
    model = load_model(task.model, acting).to(accelerator.device)
    return Player.of_model(task, acting, model, accelerator, refine_once if refines else None)


def refine_once(roles: Roles, prompts: list[Prompt], seeds: list[int]) -> list[Answer]:
    """
    Act with one round of critique and refinement at test time (Madaan et al., 2023), which needs no training. Actions
    that the critic calls the best are refined, too. An action stays as it is where its critique or refinement is
    unreadable.
    """
    answers = roles.act(prompts, seeds)
    attempts = {i: Attempt.of(roles, prompts[i], a) for i, a in enumerate(answers) if a.parsed is not None}
    for i, [only] in refinement_rounds(roles, attempts, num_rounds=1).items():
        if only.refined is not None:
            answers[i] = replace(only.refined, prompt=prompts[i])
    return answers


def at_the_start(metrics: dict[str, float]) -> dict[str, float]:
    """Return the point of a learning curve that has cost nothing."""
    names = ("environment_steps", "generated_tokens", "prefilled_tokens", "trained_tokens", "gradient_steps")
    return {**dict.fromkeys(names, 0), "seconds": 0.0, **metrics}
