# SPDX-License-Identifier: Apache-2.0

"""Playing, evaluation and budgets, the same for every method of the learning benchmark."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainerCallback

from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tokenizer import ending_token_ids, load_processing_class, tokenizer_of
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.evaluation.evaluation import evaluate_policy, joint_metrics
from trl_nlac.evaluation.oracle import examine_critic
from trl_nlac.generation.generator import Sampling
from trl_nlac.generation.loading import load_generator
from trl_nlac.method.roles import Roles
from trl_nlac.records.console import ConsoleCallback
from trl_nlac.types import Answer, Episode, Prompt


class Player:
    """
    Plays a task with the current weights of a model, and counts the costs. States are answered by the policy or `act`.
    """

    def __init__(
        self,
        task: LearningTask,
        args: NLACConfig,
        model: PreTrainedModel,
        roles: Roles,
        act: Callable[[Roles, list[Prompt], list[int]], list[Answer]] | None = None,
    ):
        self.task = task
        self.args = args
        self.model = model
        self.roles = roles
        self.act = None if act is None else partial(act, roles)
        self.environments = self._pool(task.environment_factory)
        self.num_environment_steps = 0  # without evaluations

    @classmethod
    def of_model(
        cls,
        task: LearningTask,
        args: NLACConfig,
        model: PreTrainedModel,
        accelerator: Accelerator,
        act: Callable[[Roles, list[Prompt], list[int]], list[Answer]] | None = None,
    ) -> "Player":
        """Make a player for a model that an [`NLACTrainer`] does not train."""
        revision = (args.model_init_kwargs or {}).get("revision")
        tokenizer = tokenizer_of(load_processing_class(model, revision, args.trust_remote_code), model)
        chat = ChatEncoder(tokenizer, args.chat_template_kwargs)
        eos_token_ids = ending_token_ids(tokenizer, chat.stop_ids, model.generation_config)
        generator = load_generator(
            model,
            args,
            accelerator,
            tokenizer,
            eos_token_ids,
            trust_remote_code=args.trust_remote_code,
            gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
        )
        roles = Roles(generator, chat, task.prompts, args, action_regex=args.vllm_structured_outputs_regex)
        return cls(task, args, model, roles, act)

    def play(self, rows: list[dict[str, Any]]) -> list[Episode]:
        """Play one episode of each row. Their steps count."""
        with self.roles.generator.session(self.model):
            episodes = play_episodes(self.environments, rows, self.roles, self.act)
        self.num_environment_steps += sum(len(episode.turns) for episode in episodes)
        return episodes

    def evaluate(
        self, instances: str = "held_out", num_episodes: int = 1, sampling: Sampling | None = None
    ) -> dict[str, float]:
        """
        Measure the success of the sampled policy, and the accuracy of the critic where an oracle is available; with
        another `sampling` the critic is not examined. Costs are not counted, and the random state does not change.
        """
        act = self.act if sampling is None else partial(self.roles.act, sampling=sampling)
        chosen = self.task.instances[instances]
        rows = dict(enumerate(list(chosen.rows) * num_episodes))
        with (
            self.roles.tally.unrecorded(),
            self.roles.tally.uncounted(),
            torch.random.fork_rng(),
            self.roles.generator.session(self.model),
        ):
            torch.manual_seed(self.args.seed)
            environments = self._pool(chosen.environment_factory)
            try:
                seen = evaluate_policy(
                    environments,
                    rows,
                    self.roles,
                    num_episodes=self.args.num_eval_episodes,
                    num_critiques=0,
                    seed=self.args.seed,
                    act=act,
                )
                if sampling is None and environments.oracle is not None:
                    probes = self.args.num_eval_critiques, self.args.seed
                    seen.means.update(examine_critic(environments, self.roles, *probes))
            finally:
                environments.close()
        return joint_metrics(seen)

    def _pool(self, environment_factory) -> EnvironmentPool:
        return EnvironmentPool(
            environment_factory, None, self.args.max_concurrent_environments, self.args.environment_timeout
        )


class TrainedTokens:
    """Counts the tokens of forward passes with gradients, padding included."""

    def __init__(self):
        self.number = 0

    def watch(self, model: nn.Module) -> None:
        """Count the passes of a model."""
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model, args, inputs) -> None:
        if model.training and torch.is_grad_enabled():
            self.number += inputs["input_ids"].numel()


class LearningCurve(TrainerCallback):
    """
    Evaluates a policy during training, and ends training when its budget of environment steps is spent. The learning
    rate is constant for the first 80 % of the budget and then falls to zero. `points` has for each evaluation,
    `interval` environment steps after the one before, the costs of training so far and all metrics: tokens of answers
    (generated), of the prompts that the model read for them (prefilled), and of forward passes with gradients, padding
    included (trained). On a CPU the seconds are those of the process, so that whatever else runs there does not count.
    `before` has the metrics on the unseen domain before training, if the task has one.
    """

    def __init__(self, player: Player, num_environment_steps: Callable[[], int], budget: int, interval: int):
        self.player = player
        self.num_environment_steps = num_environment_steps
        self.budget = budget
        self.swaps: list[dict[str, Any]] = []  # see [`~learning.swaps.measure`]
        self.interval = interval
        self.trained_tokens = TrainedTokens()
        self.points: list[dict[str, float]] = []
        self.before: dict[str, dict[str, float]] = {}
        self._clock = time.process_time if player.args.use_cpu else time.perf_counter
        self._start = self._clock()

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens so far by kind and role."""
        return {**dict(sorted(self.player.roles.tally.tokens.items())), "trained": self.trained_tokens.number}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.trained_tokens.watch(model)
        task = self.player.task
        self.before = {name: self.player.evaluate(name, num_episodes=task.final_episodes) for name in task.unseen}
        self._start = self._clock()
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
        seconds = self._clock() - self._start
        metrics, tokens = self.player.evaluate(), self.player.roles.tally.tokens
        point = {
            "environment_steps": self.num_environment_steps(),
            "generated_tokens": self.player.roles.tally.num_generated_tokens,
            "prefilled_tokens": sum(n for name, n in tokens.items() if name.startswith("prefilled/")),
            "trained_tokens": self.trained_tokens.number,
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
        self._start = self._clock() - seconds  # evaluation does not count


def trainer_arguments(acting: NLACConfig, learning_rate: float) -> dict[str, Any]:
    """Return the arguments that all baselines share: NLAC's optimizer, nothing saved, nothing logged."""
    shared = ("output_dir", "seed", "use_cpu", "bf16", "gradient_checkpointing", "model_init_kwargs")
    return {
        **{name: vars(acting)[name] for name in shared},
        **dict(learning_rate=learning_rate, lr_scheduler_type="constant", weight_decay=0.0, adam_beta2=0.95),
        **dict(report_to="none", disable_tqdm=True, logging_strategy="no", save_strategy="no"),
    }


def max_gradient_steps(budget: int, episodes_per_iteration: int, updates_per_iteration: int) -> int:
    """Return enough gradient steps to spend the budget. Every episode has at least one environment step."""
    return (budget // episodes_per_iteration + 1) * updates_per_iteration


def train_until_spent(
    trainer: Trainer,
    player: Player,
    budget: int,
    interval: int,
    num_environment_steps: Callable[[], int] | None = None,
) -> LearningCurve:
    """Train until the budget is spent. Without `num_environment_steps`, the steps of `player` count."""
    curve = LearningCurve(player, num_environment_steps or (lambda: player.num_environment_steps), budget, interval)
    trainer.remove_callback(ConsoleCallback)
    trainer.add_callback(curve)
    try:
        trainer.train()
    finally:
        player.environments.close()
    return curve
