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


"""How every method of the learning benchmark plays, is evaluated, and spends its budget."""

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from learning_tasks import LearningTask
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.evaluation.evaluation import evaluate_policy, joint_metrics
from trl_nlac.method.roles import Roles
from trl_nlac.training.loading import ending_token_ids, load_generator, load_tokenizer
from trl_nlac.types import Episode


class Player:
    """
    Plays a task with a model, and counts what that costs.

    Args:
        task ([`LearningTask`]):
            The task.
        args ([`NLACConfig`]):
            How to sample; the same for all methods.
        model ([`~transformers.PreTrainedModel`]):
            The policy, with the weights that it has whenever it plays.
        roles ([`~trl_nlac.roles.Roles`]):
            What lets the model speak.
    """

    def __init__(self, task: LearningTask, args: NLACConfig, model: PreTrainedModel, roles: Roles):
        self.task = task
        self.args = args
        self.model = model
        self.roles = roles
        self.environments = self._pool(task.environment_factory)
        self.num_environment_steps = 0  # of what it has played for training

    @classmethod
    def of_model(
        cls,
        task: LearningTask,
        args: NLACConfig,
        model: PreTrainedModel,
        accelerator: Accelerator,
        roles_class: type[Roles] = Roles,
    ) -> "Player":
        """A player for a model that another trainer trains."""
        tokenizer = load_tokenizer(None, model, args)
        chat = ChatEncoder(tokenizer, args.chat_template_kwargs)
        eos_token_ids = ending_token_ids(tokenizer, chat.stop_ids, model.generation_config)
        generator = load_generator(model, args, accelerator, tokenizer, eos_token_ids)
        return cls(task, args, model, roles_class(generator, chat, task.prompts, args.samplings, args.action_format))

    @classmethod
    def of_trainer(cls, task: LearningTask, trainer: NLACTrainer) -> "Player":
        """A player that speaks through an NLAC trainer, which may play by itself."""
        return cls(task, trainer.args, trainer.model, trainer.roles)

    def play(self, rows: list[dict[str, Any]]) -> list[Episode]:
        """An episode of each row; their steps are paid from the budget."""
        with self.roles.generator.session(self.model):
            episodes = play_episodes(
                self.environments, rows, self.roles, self.args.max_turns, self.args.max_prompt_length
            )
        self.num_environment_steps += sum(len(episode.turns) for episode in episodes)
        return episodes

    def evaluate(self, instances: str = "held_out", num_episodes: int = 1) -> dict[str, float]:
        """
        Success of the sampled policy, and the critic against the truth where it is known. Costs nothing of the budget and
        leaves the random state as it was.

        Args:
            instances (`str`, *optional*, defaults to `"held_out"`):
                Which of the task's instances.
            num_episodes (`int`, *optional*, defaults to `1`):
                Number of episodes of each row.
        """
        chosen = self.task.instances[instances]
        rows = dict(enumerate(list(chosen.rows) * num_episodes))
        with self._for_free(), torch.random.fork_rng(), self.roles.generator.session(self.model):
            torch.manual_seed(self.args.seed)
            environments = self._pool(chosen.environment_factory)
            try:
                seen = evaluate_policy(environments, rows, self.roles, self.args)
            finally:
                environments.close()
        return joint_metrics(seen)

    @contextmanager
    def _for_free(self):
        tokens = self.roles.num_generated_tokens
        try:
            with self.roles.unrecorded():
                yield
        finally:
            self.roles.num_generated_tokens = tokens

    def _pool(self, environment_factory) -> EnvironmentPool:
        return EnvironmentPool(
            environment_factory, None, self.args.max_concurrent_environments, self.args.environment_timeout
        )


class LearningCurve(TrainerCallback):
    """
    Evaluates a policy while it is trained, and ends training when its budget of environment steps is spent. The learning
    rate stays constant for the first 80 % of the budget and then falls to zero.

    Args:
        player ([`Player`]):
            Who evaluates.
        num_environment_steps (`Callable[[], int]`):
            What was spent so far.
        budget (`int`):
            Environment steps to spend.
        interval (`int`):
            Environment steps between two evaluations.

    Attributes:
        points (`list[dict[str, float]]`):
            What was spent, environment steps, generated tokens and seconds of training, and every metric then.
        before (`dict[str, dict[str, float]]`):
            Metrics before training on the unseen domain, if the task has one.
    """

    def __init__(self, player: Player, num_environment_steps: Callable[[], int], budget: int, interval: int):
        self.player = player
        self.num_environment_steps = num_environment_steps
        self.budget = budget
        self.interval = interval
        self.points: list[dict[str, float]] = []
        self.before: dict[str, dict[str, float]] = {}
        self._start = time.perf_counter()

    def on_train_begin(self, args, state, control, **kwargs):
        task = self.player.task
        self.before = {name: self.player.evaluate(name, num_episodes=task.final_episodes) for name in task.unseen}
        self._start = time.perf_counter()
        self._evaluate(state)

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        share_left = max(0.0, 1 - self.num_environment_steps() / self.budget)
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * min(1.0, share_left / 0.2)

    def on_step_end(self, args, state, control, **kwargs):
        spent = self.num_environment_steps()
        if spent >= self.budget:
            control.should_training_stop = True
        if spent >= self.budget or spent >= self.points[-1]["environment_steps"] + self.interval:
            self._evaluate(state)

    def _evaluate(self, state) -> None:
        seconds = time.perf_counter() - self._start
        metrics = self.player.evaluate()
        point = {
            "environment_steps": self.num_environment_steps(),
            "generated_tokens": self.player.roles.num_generated_tokens,
            "seconds": round(seconds, 1),
            "gradient_steps": state.global_step,
            **{name: round(value, 4) for name, value in metrics.items()},
        }
        self.points.append(point)
        print(
            f"{point['environment_steps']:6d} environment steps, {seconds:5.0f} s: "
            f"success {point['episode/success_rate']:.3f}",
            flush=True,
        )
        self._start = time.perf_counter() - seconds  # evaluation takes no time


def trainer_arguments(acting: NLACConfig, learning_rate: float) -> dict[str, Any]:
    """What baselines share: NLAC's optimizer, whose rate [`LearningCurve`] lowers; nothing is saved or logged."""
    return {
        "output_dir": acting.output_dir,
        "seed": acting.seed,
        "use_cpu": acting.use_cpu,
        "bf16": acting.bf16,
        "gradient_checkpointing": acting.gradient_checkpointing,
        "model_init_kwargs": acting.model_init_kwargs,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "adam_beta2": 0.95,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
    }


def max_gradient_steps(budget: int, episodes_per_iteration: int, updates_per_iteration: int) -> int:
    """A number of gradient steps that surely spends the budget, as every episode has at least one step."""
    return (budget // episodes_per_iteration + 1) * updates_per_iteration


def train_until_spent(
    trainer: Trainer,
    player: Player,
    budget: int,
    interval: int,
    num_environment_steps: Callable[[], int] | None = None,
) -> LearningCurve:
    """Train until the budget is spent: by what `player` has played, where the trainer does not count by itself."""
    curve = LearningCurve(player, num_environment_steps or (lambda: player.num_environment_steps), budget, interval)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(curve)
    try:
        trainer.train()
    finally:
        player.environments.close()
    return curve
