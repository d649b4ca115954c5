# SPDX-License-Identifier: Apache-2.0

"""
The GRPO baseline (https://huggingface.co/papers/2402.03300): TRL's trainer on whole episodes, played as NLAC plays
them. An episode is one completion: its prompt is the first state, its tokens are the actions and, masked, the
observations between them, and its reward is the return of the episode.
"""

import json
from typing import Any

import numpy as np
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from benchmarks.learning.methods.rehearsal import Rehearsal
from benchmarks.learning.playing import LearningCurve, Player, max_gradient_steps, train_until_spent, trainer_arguments
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses
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
    Train with [`~trl.GRPOTrainer`] until the budget of environment steps is spent. The episodes of a group
    (`num_generations`) have the same row, and their rewards are compared. Each gradient step uses all episodes of a
    batch. `beta` weighs the divergence from the base model, `rehearsal_coef` the loss of the rehearsal samples, where
    NLAC has the ratio alone. `options` are further ones of [`~trl.GRPOConfig`].
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
    """GRPO with rehearsal on the episodes of a task, whose rows are passed as prompts, in JSON."""

    def __init__(
        self, task: LearningTask, acting: NLACConfig, args: GRPOConfig, rehearsal_ratio: float, rehearsal_coef: float
    ):
        num_groups = args.generation_batch_size // args.num_generations
        prompts = [json.dumps(row) for row in task.rows]
        super().__init__(
            model=task.model,
            reward_funcs=episode_score,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": prompts * num_groups}),  # at least one full batch
            rollout_func=play_prompts,
            peft_config=task.peft_config,
        )
        self.player = Player.of_model(task, acting, self.model, self.accelerator)
        chat = self.player.roles.chat
        if chat.prefill or chat.reasoning_tags is not None:
            raise ValueError(
                "GRPO needs a chat template without prefill and chains of thought: an episode must be one completion."
            )
        self.rehearsal = Rehearsal(task.rehearsal, rehearsal_ratio, chat, seed=acting.seed)
        self.rehearsal_coef = rehearsal_coef
        self.collate_rehearsal = NLACCollator(chat.tokenizer.pad_token_id, device=args.device)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        examples = self.rehearsal.draw(len(inputs["advantages"]))
        if not examples or not inputs["advantages"].any():  # rehearsal alone would only narrow exploration
            return loss
        return loss + self.rehearsal_coef * batch_losses(model, self.collate_rehearsal(examples))[0].mean()


def play_prompts(prompts: list[str], trainer: EpisodeGRPOTrainer) -> dict[str, Any]:
    """Play an episode of each prompt: the trainer's `rollout_func`. Without vLLM the trainer computes `logprobs`."""
    trainer.player.model = trainer.model_wrapped  # as its weights are spread over processes
    episodes = trainer.player.play([json.loads(prompt) for prompt in prompts])
    completions = [as_completion(episode) for episode in episodes]
    names = ("prompt_ids", "completion_ids", "env_mask")
    return {
        **{name: list(values) for name, values in zip(names, zip(*completions, strict=True), strict=True)},
        "logprobs": None,
        "score": [episode.score for episode in episodes],
    }


def as_completion(episode: Episode) -> tuple[list[int], list[int], list[int]]:
    """Split an episode into its first state and the tokens after it, with a mask: 1 on actions, 0 on observations."""
    if not episode.turns:
        raise ValueError(f"An episode without an action cannot be trained on ({episode.failure}).")
    if any(turn.prompt_start for turn in episode.turns):
        raise ValueError("The history of an episode was cut, so it is not one completion. Raise `max_prompt_length`.")
    is_action = np.zeros(len(episode.token_ids), dtype=int)
    for turn in episode.turns:
        is_action[turn.prompt_end : turn.prompt_end + turn.action_length] = 1
    start = episode.turns[0].prompt_end
    return episode.token_ids[:start].tolist(), episode.token_ids[start:].tolist(), is_action[start:].tolist()


def episode_score(score: list[float], **kwargs) -> list[float]:
    """Return the return of each episode: the reward function."""
    return score
