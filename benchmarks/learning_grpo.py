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


"""
The GRPO baseline: TRL's own trainer on whole episodes, played as NLAC plays them.

An episode is one completion: its prompt is the first state, its tokens are actions and, masked, the observations
between them. Its reward is the return of the episode. GRPO: https://huggingface.co/papers/2402.03300
"""

import json
from typing import Any

import numpy as np
from datasets import Dataset
from learning_playing import LearningCurve, Player, max_gradient_steps, train_until_spent, trainer_arguments
from learning_tasks import LearningTask
from trl import GRPOConfig, GRPOTrainer

from trl_nlac import NLACConfig
from trl_nlac.method.collator import NLACCollator
from trl_nlac.method.losses import batch_losses
from trl_nlac.training.rehearsal import Rehearsal
from trl_nlac.types import Episode


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    learning_rate: float = 1e-3,
    num_generations: int = 8,
    episodes_per_iteration: int = 32,
    updates_per_iteration: int = 4,
    micro_batch_size: int | None = None,
    beta: float = 0.0,
    rehearsal_ratio: float = 0.5,
    rehearsal_coef: float = 0.5,
    **options,
) -> LearningCurve:
    """
    Train with [`~trl.GRPOTrainer`] until the budget of environment steps is spent.

    Args:
        task ([`LearningTask`]):
            The task.
        acting ([`NLACConfig`]):
            How to sample, where to write, and on which device in which precision.
        budget (`int`):
            Environment steps to spend.
        interval (`int`):
            Environment steps between two evaluations.
        learning_rate (`float`, *optional*, defaults to `1e-3`):
            Learning rate of AdamW.
        num_generations (`int`, *optional*, defaults to `8`):
            Size of a group: episodes of the same row, whose rewards are compared.
        episodes_per_iteration (`int`, *optional*, defaults to `32`):
            Episodes of a batch, of all its groups together. Must be divisible by `num_generations`.
        updates_per_iteration (`int`, *optional*, defaults to `4`):
            Gradient steps on each batch, every one on all of its episodes.
        micro_batch_size (`int`, *optional*):
            Episodes of a forward pass. If `None`, all of the batch.
        beta (`float`, *optional*, defaults to `0.0`):
            Coefficient of the Kullback-Leibler divergence from the base model.
        rehearsal_ratio (`float`, *optional*, defaults to `0.5`):
            Rehearsal samples of each gradient step, relative to the episodes.
        rehearsal_coef (`float`, *optional*, defaults to `0.5`):
            Coefficient of the mean negative log-likelihood of the rehearsal samples. NLAC's is its ratio.
        **options:
            Further arguments of [`~trl.GRPOConfig`], such as `loss_type` or `scale_rewards`.
    """
    size = micro_batch_size or episodes_per_iteration
    args = GRPOConfig(
        **trainer_arguments(acting, learning_rate),
        max_steps=max_gradient_steps(budget, episodes_per_iteration, updates_per_iteration),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=episodes_per_iteration // size,
        steps_per_generation=episodes_per_iteration // size,
        num_iterations=updates_per_iteration,
        num_generations=num_generations,
        temperature=acting.temperature,
        beta=beta,
        **options,
    )
    trainer = EpisodeGRPOTrainer(task, acting, args, rehearsal_ratio, rehearsal_coef)
    return train_until_spent(trainer, trainer.player, budget, interval)


class EpisodeGRPOTrainer(GRPOTrainer):
    """
    GRPO on the episodes of a task, with rehearsal beside it.

    Args:
        task ([`LearningTask`]):
            The task. Its rows travel as prompts, in JSON.
        acting ([`NLACConfig`]):
            How to sample.
        args ([`~trl.GRPOConfig`]):
            How to train.
        rehearsal_ratio (`float`):
            Rehearsal samples of each gradient step, relative to the episodes.
        rehearsal_coef (`float`):
            Coefficient of their loss.

    Raises:
        ValueError: If the model's chat template does not keep what was sampled as it was.
    """

    def __init__(
        self, task: LearningTask, acting: NLACConfig, args: GRPOConfig, rehearsal_ratio: float, rehearsal_coef: float
    ):
        num_groups = args.generation_batch_size // args.num_generations
        prompts = [json.dumps(row) for row in task.rows]
        super().__init__(
            model=task.model,
            reward_funcs=episode_score,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": prompts * num_groups}),  # at least one whole batch
            rollout_func=play_prompts,
            peft_config=task.peft_config,
        )
        self.player = Player.of_model(task, acting, self.model, self.accelerator)
        chat = self.player.roles.chat
        if chat.prefill or chat.reasoning_tags is not None:
            raise ValueError(
                "An episode is one completion only if its chat template neither prefills nor forgets anything."
            )
        self.rehearsal = Rehearsal(task.rehearsal, rehearsal_ratio, chat, seed=acting.seed)
        self.rehearsal_coef = rehearsal_coef
        self.collate_rehearsal = NLACCollator(chat.tokenizer.pad_token_id)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        examples = self.rehearsal.draw(len(inputs["advantages"]))
        if not examples or not inputs["advantages"].any():  # rehearsal alone would only narrow what is explored
            return loss
        batch = {name: tensor.to(loss.device) for name, tensor in self.collate_rehearsal(examples).items()}
        return loss + self.rehearsal_coef * batch_losses(model, batch).mean()


def play_prompts(prompts: list[str], trainer: EpisodeGRPOTrainer) -> dict[str, Any]:
    """
    The trainer's `rollout_func`: an episode of each prompt.

    Returns:
        `dict[str, Any]`: `prompt_ids`, `completion_ids` and `env_mask`, see [`as_completion`]; `score`, which goes to
        the reward function; and no `logprobs`: without vLLM the trainer computes those that it needs itself.
    """
    episodes = trainer.player.play([json.loads(prompt) for prompt in prompts])
    completions = [as_completion(episode) for episode in episodes]
    names = ("prompt_ids", "completion_ids", "env_mask")
    return {
        **{name: list(values) for name, values in zip(names, zip(*completions, strict=True), strict=True)},
        "logprobs": None,
        "score": [episode.score for episode in episodes],
    }


def as_completion(episode: Episode) -> tuple[list[int], list[int], list[int]]:
    """
    An episode as the tokens of its first state, those after it, and a mask of the latter: 1 on actions, 0 on
    observations.

    Raises:
        ValueError: If it has no action, or not every state continues the one before.
    """
    if not episode.turns:
        raise ValueError(f"An episode without an action cannot be trained on ({episode.failure}).")
    if any(turn.prompt_start for turn in episode.turns):
        raise ValueError(
            "The history of an episode was cut, so it is no single completion. Raise `max_prompt_length`."
        )
    is_action = np.zeros(len(episode.token_ids), dtype=int)
    for turn in episode.turns:
        is_action[turn.prompt_end : turn.prompt_end + turn.action_length] = 1
    start = episode.turns[0].prompt_end
    return episode.token_ids[:start].tolist(), episode.token_ids[start:].tolist(), is_action[start:].tolist()


def episode_score(score: list[float], **kwargs) -> list[float]:
    """The reward function: the return of each episode."""
    return score
