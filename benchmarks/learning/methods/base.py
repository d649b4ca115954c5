# SPDX-License-Identifier: Apache-2.0

"""The base model in the learning benchmark, without training."""

from accelerate import Accelerator

from benchmarks.learning.methods.roles import refine_once
from benchmarks.learning.playing import Player
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig
from trl_nlac.training.model import load_model


def play_base(task: LearningTask, acting: NLACConfig, refines: bool = False) -> Player:
    """Make a player of the base model, with or without one round of refinement of each action at test time."""
    accelerator = Accelerator(cpu=acting.use_cpu)
    model = load_model(task.model, acting).to(accelerator.device)
    return Player.of_model(task, acting, model, accelerator, refine_once if refines else None)


def at_the_start(metrics: dict[str, float]) -> dict[str, float]:
    """Return the point of a learning curve that has cost nothing."""
    names = ("environment_steps", "generated_tokens", "prefilled_tokens", "trained_tokens", "gradient_steps")
    return {**dict.fromkeys(names, 0), "seconds": 0.0, **metrics}
