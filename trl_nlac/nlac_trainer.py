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

"""Natural Language Actor-Critic."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object, set_seed
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput
from trl.trainer.utils import get_config_model_id, identity

from .chat.encoder import ChatEncoder
from .chat.tokenizer import ending_token_ids, load_tokenizer
from .environments.pool import NO_TASK, EnvironmentFactory, EnvironmentPool
from .episodes.conversations import to_dataset
from .episodes.logs import episodes_from_logs, offline_tasks
from .episodes.rewards import RewardFunc, load_rewards
from .episodes.rollout import play_episodes
from .evaluation.evaluation import evaluate_policy, joint_metrics
from .evaluation.health import health_metrics
from .evaluation.metrics import mean_over_processes
from .evaluation.oracle import judge_refinements
from .generation.loading import load_generator
from .method.backup import bellman_targets, critic_examples
from .method.batches import NLACCollator, make_batches
from .method.critic import critiques, judge_actions
from .method.losses import batch_losses
from .method.refinement import Criticise, policy_examples, refine_actions
from .method.roles import Roles
from .method.target_weights import TargetUpdateCallback, TargetWeights
from .nlac_config import NLACConfig
from .prompts import NLACPrompts
from .records.folder import TrainingLogCallback
from .records.hub import model_card, push_episodes, upload_completions
from .records.records import Records
from .replay.buffer import PrioritizedReplay
from .training.checkpoint import load_state, save_state
from .training.guards import FailureMonitor, IdleMonitor, LossGuard, TrainingStopped, nothing_played
from .training.model import fit_to_context, load_model
from .training.rehearsal import Rehearsal
from .training.sampler import IterationSampler
from .training.saving import AtomicSavingTrainer
from .types import LOSSES, Answer, Episode, Judgement, Refinement, Sample, TrainingExample, Transition


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import BitsAndBytesConfig


class NLACTrainer(AtomicSavingTrainer):
    """
    Trainer for Natural Language Actor-Critic (NLAC): off-policy actor-critic in language space. One model acts,
    criticises actions, writes the critic's Bellman targets with slowly moving weights, and refines its actions.

    Algorithm 1 of the paper, line by line:

    | line | step | code |
    |---|---|---|
    | 3-6 | act, store | [`~episodes.rollout.play_episodes`], [`PrioritizedReplay.add`] |
    | 7 | draw training samples | [`PrioritizedReplay.sample`] |
    | 8 | critic loss on Bellman targets | [`~method.backup.bellman_targets`], `compute_loss` |
    | 9 | policy loss on refined actions | [`~method.refinement.refine_actions`], `compute_loss` |
    | 10 | target weights | [`TargetWeights.update`] |

    Example:

    ```python
    from datasets import Dataset
    from trl_nlac import NLACConfig, NLACTrainer
    from trl_nlac.environments import StepResult


    class GuessTheNumber:
        def reset(self, number):
            self.number = number
            return "Guess a number from 1 to 100."

        def step(self, action):
            if not action.isdecimal():
                return StepResult("That is not a number.")
            guess = int(action)
            if guess == self.number:
                return StepResult("Right!", reward=1.0, terminated=True)
            return StepResult("Higher." if guess < self.number else "Lower.")


    trainer = NLACTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        args=NLACConfig(output_dir="guess", action_format="text"),
        train_dataset=Dataset.from_dict({"number": list(range(1, 101))}),
        environment_factory=GuessTheNumber,
    )
    trainer.train()
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to train: a model id or path, or an instance.
        args ([`NLACConfig`], *optional*):
            Configuration. If `None`, the defaults.
        train_dataset ([`~datasets.Dataset`], *optional*):
            Tasks. Each row is one task; its columns are the keywords of the environment's `reset`. If `None`, the
            environment owns its data and `max_steps` sets the length of training.
        eval_dataset ([`~datasets.Dataset`] or `dict[str, Dataset]`, *optional*):
            Tasks for evaluation.
        environment_factory (`Callable` or `dict[str, Callable]`, *optional*):
            Called without arguments, returns an environment: a text environment with `reset` and `step`, see
            [`~environments.TextEnvironment`], a `gymnasium.Env` of text, or one written for [`~trl.GRPOTrainer`],
            whose public methods are tools. With a dict, the column `environment` of the dataset names the factory of
            each task.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            Tokenizer with a chat template. If `None`, that of the model.
        reward_funcs (`Callable` or `list[Callable]`, *optional*):
            Functions that score an episode at its end, in TRL's form, see [`~episodes.rewards.EpisodeRewards`]. Their
            rewards are added to the environment's.
        tools (`list[Callable]`, *optional*):
            Standalone tools, in addition to those of a TRL environment or without an environment.
        prompts ([`NLACPrompts`], *optional*):
            Prompts of the roles. If `None`, the defaults.
        replay_dataset ([`~datasets.Dataset`], *optional*):
            Logged conversations that fill the replay buffer before training, with the columns `messages` and `reward`,
            see [`~episodes.logs.episodes_from_logs`]. Without an `environment_factory` they are the only data.
        rehearsal_dataset ([`~datasets.Dataset`], *optional*):
            Supervised samples of the roles, with the conversational columns `prompt` and `completion`, mixed into the
            batches by `rehearsal_ratio`, so that the model does not forget a role. Not in the paper.
        callbacks (`list[TrainerCallback]`, *optional*):
            Callbacks.
        optimizers (`tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None]`, *optional*):
            Optimizer and learning rate scheduler.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to train in place of the whole model.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            How to quantize a model that is loaded by name.

    Raises:
        ValueError, TypeError: If an argument or option is wrong, before training starts; the message names it.
    """

    _tag_names = ["trl", "nlac"]
    _name = "NLAC"
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: "str | PreTrainedModel | PeftModel",
        args: NLACConfig | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        environment_factory: EnvironmentFactory | dict[str, EnvironmentFactory] | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        reward_funcs: RewardFunc | list[RewardFunc] | None = None,
        tools: list[Callable] | None = None,
        prompts: NLACPrompts | None = None,
        replay_dataset: Dataset | None = None,
        rehearsal_dataset: Dataset | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        peft_config: "PeftConfig | None" = None,
        quantization_config: "BitsAndBytesConfig | None" = None,
    ):
        if args is None:
            model_name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = NLACConfig(f"{model_name.split('/')[-1]}-NLAC")
        if train_dataset is not None and len(train_dataset) == 0:
            raise ValueError("`train_dataset` is empty. Give it one row for each task.")
        self.environments = EnvironmentPool(
            environment_factory, tools, args.max_concurrent_environments, args.environment_timeout
        )
        if not self.environments:
            train_dataset = offline_tasks(replay_dataset, train_dataset, reward_funcs, args.world_size)
        elif train_dataset is None and args.max_steps > 0 and not isinstance(environment_factory, dict):
            train_dataset = Dataset.from_list([NO_TASK] * args.episodes_per_iteration)
        self.rewards = load_rewards(reward_funcs, args.reward_weights, self._reward_context, self.environments.pays)
        set_seed(args.seed)  # adapters are initialised randomly
        model = load_model(model, args, peft_config, quantization_config)
        fit_to_context(args, model.config)
        revision = (args.model_init_kwargs or {}).get("revision")
        tokenizer = load_tokenizer(processing_class, model, revision, args.trust_remote_code)
        chat = ChatEncoder(tokenizer, args.chat_template_kwargs)
        self.rehearsal = Rehearsal(rehearsal_dataset, args.rehearsal_ratio, chat, seed=args.seed + args.process_index)

        super().__init__(
            model=model,
            args=args,
            data_collator=identity,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class or tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model.add_model_tags(self._tag_names)
        generator = load_generator(
            *(self.model, args, self.accelerator, tokenizer),
            ending_token_ids(tokenizer, chat.stop_ids, model.generation_config),
            trust_remote_code=args.trust_remote_code,
            gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
        )
        self.roles = Roles(
            *(generator, chat, prompts or NLACPrompts(), args),
            action_regex=args.vllm_structured_outputs_regex,
            shows_progress=not args.disable_tqdm and self.is_world_process_zero(),
        )
        self.replay = PrioritizedReplay(
            args.replay_buffer_size,
            priority_exponent=args.priority_exponent,
            importance_sampling_exponent=args.importance_sampling_exponent,
            seed=args.seed + args.process_index,
            memory_limit=None if args.replay_buffer_memory is None else int(args.replay_buffer_memory * 2**30),
            spill_directory=args.output_dir,
        )
        if replay_dataset is not None:
            shares = (args.process_index, args.world_size, args.max_prompt_length)
            self.replay.fill(episodes_from_logs(replay_dataset, self.roles.actions, self.roles.prompts, *shares))
        is_sharded_later = self.is_deepspeed_enabled or self.is_fsdp_enabled  # the callback starts the average then
        self.target_weights = TargetWeights(
            None if is_sharded_later else self.model, args.target_update_rate, args.target_weights_offload
        )
        self.add_callback(TargetUpdateCallback(self.target_weights, args.target_sync_steps))
        self.records = Records(args, chat.decode)
        self.add_callback(TrainingLogCallback())
        self.completions_upload = upload_completions(args) if self.is_world_process_zero() else None
        self.failures = FailureMonitor(args.max_environment_failure_rate)
        self.idle = IdleMonitor(args.max_idle_iterations)
        self.loss_guard = LossGuard()
        self._collate = NLACCollator(tokenizer.pad_token_id)
        self._batches: deque[list[TrainingExample]] = deque()
        set_seed(args.seed, device_specific=True)  # processes sample differently

    @property
    def num_environment_steps(self) -> int:
        """Number of environment steps of training so far, over all processes."""
        return self.records.num_environment_steps

    # Algorithm 1

    def training_step(self, model, tasks, num_items_in_batch=None):
        try:
            if not self._batches:
                self._batches.extend(self._iteration(tasks))
            start = time.perf_counter()
            loss = super().training_step(model, tasks, num_items_in_batch)
            if not self._batches:
                self.records.end_iteration()
        except TrainingStopped:
            self._save_checkpoint(self.model, trial=None)
            raise
        self.records.metrics["time/train"].append(time.perf_counter() - start)
        return loss

    def _prepare_inputs(self, tasks: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return super()._prepare_inputs(self._collate(self._batches.popleft()))

    def _iteration(self, tasks: list[dict[str, Any]]) -> list[list[TrainingExample]]:
        """Run one iteration of algorithm 1 up to its gradient steps; returns their micro-batches."""
        refines_fresh_actions = not self.args.replay_refinement_fraction
        with self._generating():
            episodes = self._play(tasks)
            numbers = self.replay.add(episodes)
            self.records.add_episodes(episodes, numbers, self.state.global_step)
            samples = self.replay.sample(self.args.samples_per_iteration // self.args.world_size)
            transitions = [sample.transition for sample in samples]
            judgements = self._judge(transitions[: self.args.audit_samples])
            if refines_fresh_actions:
                refinements = self._refine(transitions, {})
        with self.target_weights.swapped_into(self.model), self._generating(), self.records.timed("target"):
            targets = bellman_targets(self.roles, transitions, self.args.bootstrap)
        if not refines_fresh_actions:  # the targets are the first critiques
            with self._generating():
                refinements = self._refine(transitions, dict(enumerate(targets)))
        batches = self._make_batches(samples, targets, refinements)
        metrics = mean_over_processes(self._iteration_metrics(transitions, targets, refinements, batches))
        self.records.add_samples(samples, judgements, targets, refinements, metrics, self.state.global_step)
        self._stop_if_idle(metrics)
        return batches

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if return_outputs:
            raise ValueError("The NLACTrainer does not support returning outputs")
        distills = self.args.critic_loss_type == "distill"
        teacher = partial(self.target_weights.swapped_into, self.model) if distills else None
        inputs, losses = self.loss_guard.finite_losses(partial(batch_losses, model, teacher=teacher), inputs)
        has_priority = (inputs["loss_ids"] == LOSSES.index("critic")) & (inputs["transition_ids"] >= 0)
        self.replay.update_priorities(
            inputs["transition_ids"][has_priority].tolist(), losses.detach()[has_priority].tolist()
        )
        self.records.add_losses(inputs, losses.detach(), self.accelerator.reduce)
        coefficients = losses.new_tensor([self.args.critic_loss_coef, self.args.policy_loss_coef, 1.0])
        # A sum over the samples of the micro-batch, dropped ones included, so that gradient accumulation and any
        # split over processes give the gradient of the whole batch.
        weights = coefficients[inputs["loss_ids"]] * inputs["weights"]  # (B,)
        return (weights * losses).sum() / self.args.per_device_train_batch_size

    # Parts of an iteration

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """Open a session in which the roles generate with the model's current weights."""
        with ExitStack() as stack:
            with self.records.timed("sync"):
                stack.enter_context(self.roles.generator.session(self.model_wrapped))
            yield

    def _play(self, tasks: list[dict[str, Any]]) -> list[Episode]:
        """Play the tasks, repeatedly until training can start on every process; nothing without an environment."""
        episodes: list[Episode] = []
        with self.records.timed("rollout"):
            while self.environments:
                played = play_episodes(self.environments, tasks, self.roles, rewards=self.rewards)
                episodes += played
                self.failures.update(gather_object([episode.failure is not None for episode in played]))
                if self.failures.is_exceeded:
                    raise TrainingStopped(self.failures.report(self._next_checkpoint, self.environments.last_failure))
                num_transitions = len(self.replay) + sum(len(episode.turns) for episode in episodes)
                if all(gather_object([num_transitions >= max(1, self.args.learning_starts)])):
                    break
                if not any(gather_object([any(episode.turns for episode in played)])):
                    raise RuntimeError(nothing_played(played))
        return episodes

    def _judge(self, transitions: list[Transition]) -> list[Judgement | None]:
        """Judge stored actions for the audit trail. Metrics and random state stay as they were."""
        if not transitions:
            return []
        # The seeds of answers come from torch's global generator.
        with self.records.timed("audit"), self.roles.unrecorded(), torch.random.fork_rng(devices=[]):
            return judge_actions(self.roles, [transition.state_action for transition in transitions])

    def _refine(
        self, transitions: list[Transition], targets: dict[int, Answer], criticise: Criticise = critiques
    ) -> list[Refinement | None]:
        """Refine fresh actions, and stored ones where they are drawn from those with `targets`."""
        with self.records.timed("refine"):
            fraction = self.args.replay_refinement_fraction
            replayed = {i: target for i, target in targets.items() if torch.rand(()) < fraction}
            return refine_actions(self.roles, transitions, self.args.num_refinements, replayed, criticise)

    def _iteration_metrics(
        self,
        transitions: list[Transition],
        targets: list[Answer],
        refinements: list[Refinement | None],
        batches: list[list[TrainingExample]],
    ) -> dict[str, float]:
        """Compute the metrics of an iteration on this process."""
        oracle = self.environments.oracle
        numbers = Counter(example.loss for batch in batches for example in batch if example.weight)
        return {
            **{f"{loss}/num_examples": float(numbers[loss]) for loss in ("critic", "policy")},
            **self.roles.take_metrics(),
            **health_metrics(transitions, targets, refinements),
            **(judge_refinements(oracle, transitions, refinements) if oracle is not None else {}),
            "replay/size": float(len(self.replay)),
            "replay/priority_mean": self.replay.priority_mean,
            "target/distance": self.target_weights.distance(self.model),
        }

    def _stop_if_idle(self, metrics: dict[str, float]) -> None:
        """Stop where neither loss had an example for too long. Without both losses, rehearsal alone is meant."""
        coefficients = {"critic": self.args.critic_loss_coef, "policy": self.args.policy_loss_coef}
        trained = [f"{loss}/num_examples" for loss, coefficient in coefficients.items() if coefficient]
        if trained:
            self.idle.update(sum(metrics[name] for name in trained))
        if self.idle.is_exceeded:
            causes = self.records.formats.causes().values()
            raise TrainingStopped(self.idle.report(self._next_checkpoint, list(causes)))

    def _make_batches(
        self, samples: list[Sample], targets: list[Answer], refinements: list[Refinement | None]
    ) -> list[list[TrainingExample]]:
        """Make the micro-batches of an iteration: examples of both losses, and of rehearsal."""
        num_micro_batches = self.args.gradient_accumulation_steps
        step_size = num_micro_batches * self.args.per_device_train_batch_size
        distills = self.args.critic_loss_type == "distill"
        nothing = [None] * len(samples)
        return make_batches(
            samples,
            critic_examples(self.roles, samples, targets, distills) if self.args.critic_loss_coef else nothing,
            policy_examples(self.roles, samples, refinements),
            [self.rehearsal.draw(step_size) for _ in range(len(samples) // step_size)],
            num_micro_batches,
            self.roles.chat.end_of_turn_id,
        )

    def _reward_context(self) -> dict[str, Any]:
        """Additional arguments of reward functions, as in TRL."""
        return {
            "trainer_state": self.state,
            "log_metric": lambda name, value: self.records.metrics[name].append(value),
        }

    # Logs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # the log of training steps; those of evaluation and of the end have their own metrics
            logs.update(self.records.take(self.state.global_step))
            logs["nonfinite_losses"] = self.loss_guard.num_dropped
        super().log(logs, start_time)

    def train(self, *args, **kwargs):
        try:
            output = super().train(*args, **kwargs)
            self.records.write(self.state.global_step)
            if self.completions_upload is not None:
                futures.wait([self.completions_upload.trigger()])
            return output
        finally:
            self.environments.close()

    # Evaluation

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Play `num_eval_episodes` of each task. Replay buffer and random state of training stay as they were."""
        if not self.environments:
            raise ValueError(
                "Evaluation plays, and there is no `environment_factory`. Give one, or evaluate elsewhere."
            )
        args, device, rank, dataset = self.args, self.accelerator.device, self.args.process_index, dataloader.dataset
        tasks = {i: dataset[i] for i in range(rank, len(dataset), args.world_size)}
        numbers = (args.num_eval_episodes, args.num_eval_critiques, args.num_oracle_probes, args.seed)
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(args.seed + rank)
                with self.roles.generator.session(self.model_wrapped):
                    evaluation = evaluate_policy(self.environments, tasks, self.roles, *numbers, rewards=self.rewards)
        finally:
            if not self.is_in_train:
                self.environments.close()
        self.roles.take_metrics()
        self.records.add_evaluation(evaluation, self.state.global_step, metric_key_prefix)
        metrics = {**joint_metrics(evaluation), "environment/steps": self.num_environment_steps}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        num_samples = sum(gather_object([len(evaluation.episodes)]))
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=num_samples)

    # Data

    def get_train_dataloader(self) -> DataLoader:
        if self.train_dataset is None:
            raise ValueError("Training requires a `train_dataset`.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self.args.episodes_per_iteration // self.args.world_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def _get_train_sampler(self, dataset: Dataset | None = None) -> IterationSampler:
        return IterationSampler(
            self.train_dataset if dataset is None else dataset,
            self.args.episodes_per_iteration,
            self.args.steps_per_iteration,
            shuffle=self.args.shuffle_dataset,
            seed=self.args.seed,
            epoch=lambda: int(self.state.epoch or 0),
        )

    # Hub

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """
        Write the model card, `README.md`, into the output folder, as [`push_to_hub`] and every checkpoint do.

        Args:
            model_name (`str`, *optional*):
                Name of the model. If `None`, that of its repository or folder.
            dataset_name (`str`, *optional*):
                Dataset of the tasks on the Hub.
            tags (`str` or `list[str]`, *optional*):
                Tags in addition to `trl` and `nlac`.
        """
        if not self.is_world_process_zero():
            return
        newest = self.replay.newest(1)
        card = model_card(
            self.args,
            self.state,
            self.environments.name,
            num_environment_steps=self.num_environment_steps,
            num_tasks=None if self.train_dataset is None else len(self.train_dataset),
            example=newest[0].first_observation if newest else "...",
            base_model=get_config_model_id(self.model.config),
            repo_id=self.hub_model_id,
            tags=[*self._tag_names, *([tags] if isinstance(tags, str) else tags or [])],
            model_name=model_name,
            dataset_name=dataset_name,
        )
        card.save(Path(self.args.output_dir, "README.md"))

    def push_replay_to_hub(self, repo_id: str, private: bool | None = None, token: str | None = None) -> str:
        """
        Upload the episodes of this process's replay buffer as a dataset of conversations with a card.

        Args:
            repo_id (`str`):
                Name of the dataset on the Hub.
            private (`bool`, *optional*):
                Whether a new repository is private. If `None`, the organisation's default.
            token (`str`, *optional*):
                Token of the Hub. If `None`, that of the login.

        Returns:
            `str`: address of the dataset.

        Raises:
            ValueError: If the buffer is empty.
        """
        if not len(self.replay):
            raise ValueError(f"The replay buffer is empty: there is nothing to upload to {repo_id!r}.")
        return push_episodes(to_dataset(self.replay.episodes, self.roles.actions), repo_id, private, token)

    # Checkpoints

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            # Also into the run's own folder, which is uploaded during training.
            for directory in {output_dir or self.args.output_dir, self.args.output_dir}:
                self.roles.prompts.save_pretrained(directory)
                self.args.save_pretrained(directory)

    def _save_checkpoint(self, model, trial) -> None:
        start = time.perf_counter()
        super()._save_checkpoint(model, trial)
        self.records.metrics["time/save"].append(time.perf_counter() - start)
        self.records.metrics["checkpoint/size_mb"].append(sum(self.checkpoint_sizes.values()) / 1e6)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        state = {
            "world_size": self.args.world_size,
            **self.records.state_dict(),
            "rehearsal_rng": self.rehearsal.rng.bit_generator.state,
            "nonfinite_losses": self.loss_guard.num_dropped,
        }
        rank = self.args.process_index
        save_state(Path(output_dir), rank, self.replay, self.target_weights, list(self._batches), state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.target_weights.start(self.model)
            rank, world_size = self.args.process_index, self.args.world_size
            batches, state = load_state(Path(checkpoint), rank, world_size, self.replay, self.target_weights)
            self._batches = deque(batches)
            self.records.load_state_dict(state)
            self.loss_guard.num_dropped = state["nonfinite_losses"]
            if "rehearsal_rng" in state:
                self.rehearsal.rng.bit_generator.state = state["rehearsal_rng"]
