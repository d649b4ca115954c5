# SPDX-License-Identifier: Apache-2.0

"""Natural Language Actor-Critic."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object, set_seed
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from .episodes.failures import FailureMonitor
from .episodes.player import Player
from .episodes.pool import EnvironmentFactory
from .episodes.rewards import RewardFunc
from .evaluation.comparing import ComparedEvaluations
from .evaluation.evaluation import evaluate_policy, joint_metrics
from .evaluation.health import iteration_metrics
from .evaluation.metrics import mean_over_processes
from .method.backup import write_targets
from .method.batches import MicroBatch, NLACCollator, make_batches, spread_by_length, spread_by_prefix
from .method.critic import judge_aside
from .method.iteration import attempt_each, foresee_each, make_examples, refined_actions, unanswerable
from .method.losses import anchored, batch_losses, distilled
from .method.refinement import Attempt
from .method.target_weights import InitialWeights, TargetWeights, WeightsCallback
from .method.worked_examples import NUM_STEPS, WorkedExamples
from .nlac_config import NLACConfig
from .private_names import identity
from .prompts import NLACPrompts
from .records.folder import END_OF_TRAINING
from .records.hub import PublishedTrainer
from .records.records import Records
from .training import build
from .training.arguments import check_arguments, check_tasks, check_types
from .training.checkpoint import drop_outdated, load_rows, load_state, save_rows, save_state
from .training.chunked_head import can_chunk_head
from .training.guards import GradientGuard, IdleMonitor, LossGuard
from .training.passes import accumulating, split_into_passes
from .training.run import RunTrainer
from .training.target_reuse import TargetReuse, target_lags
from .training.tree_attention import start_sharing
from .training.unchanged import UnchangedWeightsCallback
from .types import (
    LOSSES,
    Answer,
    Episode,
    Judgement,
    Prompt,
    Refinement,
    Sample,
    TrainingExample,
    TrainingStopped,
    Transition,
    all_conversations,
)


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import BitsAndBytesConfig


class NLACTrainer(PublishedTrainer, ComparedEvaluations, RunTrainer):
    """
    Trainer for Natural Language Actor-Critic (NLAC): off-policy actor-critic in language space. One model acts,
    criticises actions, writes the critic's Bellman targets with slowly moving weights, and refines its actions.

    Algorithm 1 of the paper, line by line:

    | line | step | code |
    |---|---|---|
    | 3-6 | act, store | [`~episodes.rollout.play_episodes`], [`PrioritizedReplay.add`] |
    | 7 | draw training samples | [`PrioritizedReplay.sample`] |
    | 8 | critic loss on Bellman targets | [`~method.backup.backup_questions`], `write_targets`, `compute_loss` |
    | 9 | policy loss on refined actions | [`~method.refinement.sample_attempts`], `refine_attempts`, `compute_loss` |
    | 10 | target weights | [`TargetWeights.update`] |

    Example (the README has one with an environment):

    ```python
    from datasets import Dataset
    from trl_nlac import NLACConfig, NLACTrainer
    NLACTrainer(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        args=NLACConfig(output_dir="short-answers"),
        train_dataset=Dataset.from_dict({"prompt": ["Name a colour.", "Name an animal."]}),
        reward_funcs=lambda completions, **kwargs: [float(len(text) < 20) for text in completions],
    ).train()
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
            Tasks for evaluation, which needs an environment to play in.
        environment_factory (`Callable` or `dict[str, Callable]`, *optional*):
            Called without arguments, returns an environment: a text environment with `reset` and `step`, see
            [`~environments.TextEnvironment`], a `gymnasium.Env` of text, or one written for [`~trl.GRPOTrainer`],
            whose public methods are tools. With a dict, the column `environment` of the dataset names the factory of
            each task.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            Tokenizer with a chat template. If `None`, that of the model.
        reward_funcs (`Callable`, `str`, [`~transformers.PreTrainedModel`] or a list of them, *optional*):
            What scores an episode at its end: functions in TRL's form, see [`~episodes.rewards.EpisodeRewards`], and
            reward models, see [`~episodes.rewards.RewardModel`]. The rewards are added to the environment's. With a
            column `prompt` in the dataset and no environment, the answer to a prompt is the whole episode, as in
            [`~trl.GRPOTrainer`]; `max_turns` is 1 then, and `single_step` true.
        tools (`list[Callable]`, *optional*):
            Standalone tools, in addition to those of a TRL environment or without an environment.
        prompts ([`NLACPrompts`], *optional*):
            Prompts of the roles. If `None`, the defaults.
        replay_dataset ([`~datasets.Dataset`], *optional*):
            Logged conversations that fill the replay buffer before training, with the columns `messages` and `reward`,
            see [`~episodes.logs.episodes_from_logs`]. Without an `environment_factory` they are the only data.
        callbacks (`list[TrainerCallback]`, *optional*):
            Callbacks.
        optimizers (`tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None]`, *optional*):
            Optimizer and learning rate scheduler.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to train in place of the whole model. Not one with virtual tokens in the sequence, as of prompt
            tuning.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            How to quantize a model that is loaded by name.
        reward_processing_classes ([`~transformers.PreTrainedTokenizerBase`] or a list of them, *optional*):
            Tokenizers of the reward models in `reward_funcs`, one for each entry; `None` for functions, and where the
            model's own is meant.
        rollout_func (`Callable`, *optional*):
            Refused: what it does in [`~trl.GRPOTrainer`], an environment does here.

    Raises:
        ValueError, TypeError: If an argument or option is wrong, before training starts; the message names it.
        TimeoutError: If making an environment takes longer than `environment_timeout`.
    """

    _tag_names = ["trl", "nlac"]
    _name = "NLAC"
    loss_is_scaled_for_ga = False
    distilled = staticmethod(distilled)  # the loss of a distilled policy
    shares_prefixes = True  # whether the samples of a pass become one tree of tokens, if the model can read it

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
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        peft_config: "PeftConfig | None" = None,
        quantization_config: "BitsAndBytesConfig | None" = None,
        reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase | None] | None = None,
        rollout_func: Callable | None = None,
    ):
        check_arguments(locals())
        args = build.checked_args(args, model, eval_dataset)
        self.environments = build.make_environments(args, environment_factory, tools, reward_funcs, train_dataset)
        self.rewards = build.make_rewards(
            args,
            self.environments,
            reward_funcs,
            reward_processing_classes,
            lambda: {"trainer_state": self.state, "log_metric": self.records.add_function_metric},
        )
        train_dataset = build.choose_tasks(
            args, self.environments, environment_factory, train_dataset, eval_dataset, reward_funcs, replay_dataset
        )
        set_seed(args.seed)  # adapters are initialised randomly
        loaded = build.load(model, args, self.environments, processing_class, peft_config, quantization_config)
        super().__init__(
            model=loaded.model,
            args=args,
            data_collator=identity,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=loaded.processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model.add_model_tags(self._tag_names)
        is_sharded_later = self.is_deepspeed_enabled or self.is_fsdp_enabled  # the callback starts the average then
        self.roles = build.make_roles(loaded, self.model, args, self.accelerator, prompts, is_sharded_later)
        self.rollouts = build.make_rollouts(self.environments, self.roles, self.rewards, args)
        self.replay, self._logs = build.make_replay(args, self.roles, replay_dataset), replay_dataset
        whole = None if is_sharded_later else self.model
        self.initial_weights = InitialWeights(whole)
        self.target_weights = TargetWeights(whole, args.target_update_rate)
        self.add_callback(WeightsCallback(self.initial_weights, self.target_weights))
        self.add_callback(UnchangedWeightsCallback())
        self.records = Records(args, loaded.chat.decode)
        self.examples = WorkedExamples(self.roles, args.examples == "auto")
        self.idle, self.loss_guard, self.gradient_guard = IdleMonitor(), LossGuard(), GradientGuard()
        failures = FailureMonitor(args.max_environment_failure_rate)
        of_run = (self._store, self._other_tasks, self._generating, self.records.timed)
        self.player = Player(self.rollouts, failures, self.rendezvous, *of_run)
        self.stateful = {
            "records": self.records,
            "tally": self.roles.tally,
            "examples": self.examples,
            "failures": failures,
            "idle": self.idle,
            "loss_guard": self.loss_guard,
            "gradient_guard": self.gradient_guard,
        }
        self.identity = build.identity_of(loaded, args, self.roles.prompts, self.environments, optimizers[0])
        self._batches: deque[list[TrainingExample]] = deque()
        self._taken: list[list[TrainingExample]] = []  # micro-batches of the optimizer step under way
        set_seed(args.seed, device_specific=True)  # processes sample differently

    @cached_property
    def _collate(self) -> NLACCollator:
        """Makes the micro-batches, in the form that the model can read, which is tried when training starts."""
        of_run = (self.model_wrapped, self.model.config, self.args)
        keeps_logits = not can_chunk_head(*of_run)
        shares = self.shares_prefixes and start_sharing(*of_run)
        return NLACCollator(self.roles.chat.tokenizer.pad_token_id, shares, keeps_logits, self.args.device)

    # Algorithm 1

    def _iteration(self, tasks: list[dict[str, Any]]) -> list[list[TrainingExample]]:
        """Run one iteration of algorithm 1 up to its gradient steps; returns their micro-batches."""
        step = self.state.global_step
        is_last = step + self.args.updates_per_iteration >= self.state.max_steps
        self.player.wait(step, for_all=is_last)
        with self._generating():
            self._play(tasks, step, is_last)
            if self.examples.is_due:
                self._choose_examples(partial(self._play, tasks, step, is_last))
            samples = self.replay.sample(self.args.num_samples(len(self.replay)))
            transitions = [sample.transition for sample in samples]
            with self.records.timed("audit"):
                judgements = judge_aside(self.roles, transitions[: self.args.audit_samples])
            attempts = self._attempt(transitions)
        lifetime = self.args.target_age(self.state.max_steps) * self.args.updates_per_iteration
        reuse = TargetReuse(samples, self.replay.targets, self.target_weights.num_updates, lifetime)
        with self.target_weights.swapped_into(self.model), self._generating():
            questions = self._foresee(reuse.due)
        with self.initial_weights.swapped_into(self.model), self._generating():
            targets = self._write_targets(reuse, questions)
            refinements = self._refine(transitions, attempts, targets)
        self.player.play_on()
        batches = self._make_batches(samples, targets, refinements)
        self._record_iteration(samples, judgements, targets, refinements, batches)
        return batches

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if return_outputs:
            raise ValueError("The NLACTrainer does not support returning outputs")
        teacher = partial(self.initial_weights.swapped_into, self.model) if self.args.has_teacher else None
        taught = self.distilled if self.args.distills else partial(anchored, kl_coef=self.args.policy_kl_coef)
        aux_losses = [] if self.args.router_aux_loss_coef else None

        def compute(batch: MicroBatch) -> torch.Tensor:
            return batch_losses(model, batch, teacher, aux_losses, taught)

        batch, losses = self.loss_guard.finite_losses(compute, inputs, self._collate)
        has_priority = (batch.loss_ids == LOSSES.index("critic")) & (batch.transition_ids >= 0)
        self.replay.update_priorities(
            batch.transition_ids[has_priority].tolist(), losses.detach()[has_priority].tolist()
        )
        num_tokens = batch.tokens.inputs["input_ids"].numel()
        self.records.add_losses(batch.examples, losses.detach(), num_tokens, self.accelerator.reduce)
        coefficients = losses.new_tensor([self.args.critic_loss_coef, self.args.policy_loss_coef])
        # A sum over the samples of the micro-batch, dropped ones included, so that gradient accumulation and any
        # split over processes give the gradient of the whole batch.
        weights = coefficients[batch.loss_ids] * batch.weights  # (B,)
        loss = (weights * losses).sum() / self.args.per_device_train_batch_size
        if not aux_losses:
            return loss
        self.records.metrics["aux_loss"].append(self.accelerator.reduce(aux_losses[-1].detach(), "mean").item())
        share = batch.weights.count_nonzero() / len(self._taken[-1])  # of the micro-batch in this pass
        return loss + self.args.router_aux_loss_coef * share * aux_losses[-1]

    # Optimizer steps

    def before_training(self, checkpoint: str | None) -> None:
        # A run that an error ended leaves these behind; a checkpoint has batches and failures of its own.
        self._batches.clear()
        self._taken.clear()
        self.player.failures.failed.clear()
        self.loss_guard.num_batches = self.gradient_guard.num_in_a_row = 0
        if checkpoint is None:
            # A buffer that was loaded is of another run, with other versions of target weights and other limits.
            self.replay.targets.clear()
            self.replay.take_in()

    def after_training(self) -> None:
        self.rollouts.stop()
        self.environments.close()

    def training_step(self, model, tasks, num_items_in_batch=None):
        try:
            self.gradient_guard.check()
            if not self._batches:
                self._batches.extend(self._iteration(tasks))
            start = time.perf_counter()
            self._taken.append(self._batches.popleft())
            passes = split_into_passes(self._taken[-1], self.args.max_tokens_per_batch, self._collate)
            loss = 0.0
            for number, examples in enumerate(passes, start=1):
                with accumulating(self.accelerator, model, is_last=number == len(passes)):
                    loss = loss + super().training_step(model, examples, num_items_in_batch)
            self.records.num_samples += self.args.per_device_train_batch_size * self.args.world_size
            if not self._batches:
                self.records.end_iteration()
                if self.args.logging_strategy == "no":  # no log takes them
                    self.records.take(self.state.global_step)
            if len(self._taken) == self.args.gradient_accumulation_steps:
                self._taken.clear()
        except TrainingStopped as stopped:
            self._batches.extendleft(reversed(self._taken))  # a resumed run takes the whole step again
            self._taken.clear()
            self._save_checkpoint(self.model, trial=None)
            raise TrainingStopped(f"Training stops, {self._next_checkpoint} is saved. {stopped}") from stopped
        self.records.metrics["time/train"].append(time.perf_counter() - start)
        return loss

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        # With fp16, infinite gradients lower the scale of the loss, and what scales it leaves the step out.
        if not self.args.fp16 and self.gradient_guard.skips(norm, self.state.global_step):
            model.zero_grad()
        return norm

    def _prepare_inputs(self, examples: list[TrainingExample]) -> MicroBatch:
        return self._collate(examples)

    def _track_num_input_tokens(self, inputs):
        """Do nothing: [`_iteration`] counts the tokens of all roles."""

    # Parts of an iteration

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """Open a session in which the roles generate with the model's current weights."""
        with ExitStack() as stack:
            with self.records.timed("sync"):
                stack.enter_context(self.roles.generator.session(self.model_wrapped))
            yield

    def _other_tasks(self, number: int) -> list[dict[str, Any]]:
        """Draw tasks, for what is played before training can start."""
        return [self.train_dataset[place] for place in torch.randint(len(self.train_dataset), (number,)).tolist()]

    def _store(self, episodes: list[Episode]) -> list[int]:
        """Store episodes and record them. Returns the ids of their conversations, see [`PrioritizedReplay.add`]."""
        numbers = self.replay.add(all_conversations(episodes))
        self.records.add_episodes(episodes, numbers, self.state.global_step)
        self.records.metrics["rollout/staleness"] += self.rollouts.take_staleness(self.state.global_step)
        return numbers

    def _play(self, tasks: list[dict[str, Any]], step: int, is_last: bool) -> None:
        """Play tasks into the buffer (lines 4 to 6)."""
        if self.environments:
            self.player.play(tasks, step, len(self.replay) > 0, is_last)

    def _choose_examples(self, play: Callable[[], None]) -> None:
        """Look at how the roles answer, begin again if worked examples help, and say how long the iteration takes."""
        before, args = self.replay, self.args

        def begin_again() -> list[Episode]:
            self.replay = build.make_replay(args, self.roles, self._logs)
            play()
            return self.replay.newest(NUM_STEPS)

        look = self.examples.choose(before.newest(NUM_STEPS), begin_again, args.seed, args.device)
        if not self.examples.are_shown:
            self.replay = before
        self.say(look.forecast(args.num_samples(len(self.replay))))

    def _attempt(self, transitions: list[Transition]) -> list[Attempt | None]:
        """Act in the states of transitions and judge the actions, with the policy's weights (line 9)."""
        with self.records.timed("attempt"):
            return attempt_each(self.roles, [] if self.args.is_in_hindsight else transitions)

    def _foresee(self, transitions: list[Transition]) -> list[Prompt | None]:
        """Foresee what follows transitions, with the target weights, and ask the backup about it (line 8)."""
        with self.records.timed("future"):
            return foresee_each(self.roles, transitions, self.args.bootstrap)

    def _write_targets(self, reuse: TargetReuse, questions: list[Prompt | None]) -> list[Answer]:
        """Write the Bellman targets that are due, with the initial weights; returns those of all samples (line 8)."""
        with self.records.timed("target"):
            targets, versions = reuse.complete(write_targets(self.roles, reuse.due, questions))
        sizes = (self.args.global_batch_size, self.args.draws_per_iteration)
        for name, lags in target_lags(self.target_weights, versions, *sizes).items():
            self.roles.tally.note(name, lags)
        return targets

    def _refine(
        self, transitions: list[Transition], attempts: list[Attempt | None], targets: list[Answer]
    ) -> list[Refinement | None]:
        """Refine the attempts in the states of transitions, with the initial weights (line 9)."""
        with self.records.timed("refine"):
            return refined_actions(self.roles, self.args, transitions, attempts, targets)

    def _make_batches(
        self, samples: list[Sample], targets: list[Answer], refinements: list[Refinement | None]
    ) -> list[list[TrainingExample]]:
        """Make the micro-batches of an iteration, with examples of both losses."""
        args = self.args
        of_critic, of_policy = make_examples(self.roles, args, samples, targets, refinements)
        if args.critic_loss_coef:  # no loss will lower the priority of what has no target
            without = [s.transition_id for s, example in zip(samples, of_critic, strict=True) if example is None]
            self.replay.update_priorities(without, [0.0] * len(without))
        self.replay.leave_out(unanswerable(self.roles, args, samples, of_critic, of_policy))
        number = args.draws_per_iteration // args.world_size
        return make_batches(
            *(list(islice(cycle(rows), number)) for rows in (samples, of_critic, of_policy)),
            args.updates_per_iteration,
            args.gradient_accumulation_steps,
            self.roles.chat.end_of_turn_id,
            spread_by_prefix if self._collate.shares_prefixes else spread_by_length,
        )

    def _record_iteration(
        self,
        samples: list[Sample],
        judgements: list[Judgement | None],
        targets: list[Answer],
        refinements: list[Refinement | None],
        batches: list[list[TrainingExample]],
    ) -> None:
        """Record what an iteration made, and stop a run that learns nothing."""
        oracle = self.environments.oracle
        numbers = Counter(example.loss for batch in batches for example in batch if example.weight)
        metrics = mean_over_processes(
            {
                **{f"{loss}/num_examples": float(numbers[loss]) for loss in ("critic", "policy")},
                **self.roles.take_metrics(),
                **iteration_metrics(self.roles, samples, targets, refinements, oracle, self.args.distills),
                **self.replay.metrics(),
                "environment/num_left_behind": float(self.environments.num_left_behind),
                "target/distance": self.target_weights.distance(self.model),
            }
        )
        self.records.add_tokens(self.roles.tally.tokens)
        self.state.num_input_tokens_seen = self.records.num_tokens
        self.records.add_samples(samples, judgements, targets, refinements, metrics, self.state.global_step)
        coefficients = {"critic": self.args.critic_loss_coef, "policy": self.args.policy_loss_coef}
        self.idle.update({loss: metrics[f"{loss}/num_examples"] for loss in coefficients if coefficients[loss]})
        self.idle.check(list(self.records.formats.causes().values()))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # the log of training steps; those of evaluation and of the end have their own metrics
            logs.update(self.records.take(self.state.global_step))
            logs["nonfinite_losses"] = self.loss_guard.num_dropped
            logs["nonfinite_gradients"] = self.gradient_guard.num_skipped
        if END_OF_TRAINING in logs and not self.had_ended:
            self.player.finish(self.state.global_step)
            self.records.end_iteration()
            self.records.write(self.state.global_step)
            self.idle.warn_at_the_end(list(self.records.formats.causes().values()))
        super().log(logs, start_time)

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
            raise ValueError("`evaluate()` requires an `environment_factory`.")
        self.player.finish(self.state.global_step)
        if not self.is_in_train:
            self._place_model()
        args, dataset = self.args, dataloader.dataset
        check_types(eval_dataset=dataset)
        check_tasks(None, dataset, self.environments.check_task)
        tasks = {i: dataset[i] for i in range(args.process_index, len(dataset), args.world_size)}
        numbers = (args.num_eval_episodes, args.num_eval_critiques, args.seed)
        of_run = {"rewards": self.rewards, "once_played": self.rendezvous.wait}
        try:
            with self.roles.aside(args.seed + args.process_index, self.accelerator.device):
                with self.roles.generator.session(self.model_wrapped):
                    evaluation = evaluate_policy(self.environments, tasks, self.roles, *numbers, **of_run)
                    self.rendezvous.wait()  # probes play, too
        finally:
            if not self.is_in_train:
                self.environments.close()
        self.roles.generator.take_metrics()
        if self._training_log.is_on:
            self.records.add_evaluation(evaluation, self.state.global_step, metric_key_prefix)
        metrics = {**joint_metrics(evaluation), **self.records.take_function_metrics()}
        metrics["environment/steps"] = self.num_environment_steps
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        num_samples = sum(gather_object([len(evaluation.episodes)]))
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=num_samples)

    # Checkpoints

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            # Also into the run's own folder, which is uploaded during training.
            for directory in {output_dir or self.args.output_dir, self.args.output_dir}:
                self.roles.prompts.save_pretrained(directory)
                self.args.save_pretrained(directory)

    def before_saving(self) -> None:
        self.player.settle(self.state.global_step)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        directory, rank, writes = Path(output_dir), self.args.process_index, self.args.should_save
        batches, state = list(self._batches), self.run_state()
        save_state(directory, rank, self.replay, self.target_weights, self.initial_weights, batches, state, writes)
        save_rows(directory, rank, {**self.records.rows(), **self.rollouts.rows()})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        of_process = (Path(checkpoint), self.args.process_index, self.args.world_size)
        for weights in (self.initial_weights, self.target_weights):
            weights.start(self.model)
        batches, state = load_state(*of_process, self.replay, self.target_weights, self.initial_weights)
        drop_outdated(of_process[0], state["iteration_options"], self.args, self.replay, batches)
        self._batches = deque(batches)
        self.load_run_state(state)
        rows = load_rows(*of_process)
        self.records.load_rows(rows)
        self.rollouts.load_rows(rows)
        if not batches:
            self.records.end_iteration()
