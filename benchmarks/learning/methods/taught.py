# SPDX-License-Identifier: Apache-2.0


"""
A control: supervised fine-tuning on episodes of somebody who knows the task. What the base model does not learn from
them, no method that learns from the model's own episodes can be expected to teach.
"""

import json
import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from accelerate import Accelerator
from datasets import Dataset

from benchmarks.learning.methods.sft import sft_trainer
from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    max_steps: int = 1400,
    rehearsal_ratio: float = 1.0,
) -> LearningCurve:
    """
    Train on episodes of the task's teacher, with [`~trl.SFTTrainer`].

    Args:
        task ([`LearningTask`]):
            The task.
        acting ([`NLACConfig`]):
            How to sample, the output folder, the device and the precision.
        budget (`int`):
            Actions of the teacher, which count as environment steps, in equal parts for each gradient step.
        interval (`int`):
            Environment steps between two evaluations.
        max_steps (`int`, *optional*, defaults to `1400`):
            Gradient steps of 32 actions, about as many as NLAC has.
        rehearsal_ratio (`float`, *optional*, defaults to `1.0`):
            Rehearsal samples of a batch, relative to the actions.

    Raises:
        ValueError: If the task has no teacher.
    """
    if task.teacher is None:
        raise ValueError(f"`--methods taught` needs a task with a teacher, and {task.name!r} has none.")
    episodes, logs, num_actions = taught_episodes(task, acting.seed), [], 0
    while num_actions < budget:
        logs.append(next(episodes))
        num_actions += sum(message["role"] == "assistant" for message in logs[-1]["messages"])
    trainer = sft_trainer(task, acting, Dataset.from_list(logs), max_steps, rehearsal_ratio)
    player = Player.of_model(task, acting, trainer.model, Accelerator(cpu=True))
    return train_until_spent(
        trainer,
        player,
        budget,
        interval,
        num_environment_steps=lambda: trainer.state.global_step * budget // max_steps,
    )


def taught_episodes(task: LearningTask, seed: int) -> Iterator[dict[str, Any]]:
    """
    Let the teacher play the task's rows, again and again.

    Yields:
        `dict`: a conversation with `task`, `messages` and `reward`, see [`~episodes.logs.episodes_from_logs`].
    """
    rng, environment = random.Random(f"teacher {seed}"), task.environment_factory()
    for row in cycle(task.rows):
        messages, steps = [{"role": "user", "content": environment.reset(**row)}], []
        while True:
            action = task.teacher(environment, steps, rng)
            result = environment.step(action)
            messages.append({"role": "assistant", "content": action})
            messages.append({"role": "user", "content": result.observation})
            if result.terminated:
                break
            steps.append((action, result.observation))
        yield {"task": json.dumps(row), "messages": messages, "reward": result.reward}
