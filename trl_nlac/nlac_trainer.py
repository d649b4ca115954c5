# SPDX-License-Identifier: Apache-2.0

"""Natural Language Actor-Critic."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from datasets import Dataset
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    ProgressCallback,
    TrainerCallback,
)
from transformers.optimization import GreedyLR
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import EvalLoopOutput, TrainOutput
from transformers.training_args import OptimizerNames
from trl.trainer.utils import get_config_model_id, identity

from .chat.actions import choose_format
from .chat.encoder import ChatEncoder
from .chat.tokenizer import ending_token_ids, load_processing_class, tokenizer_of
from .episodes.conversations import to_dataset
from .episodes.logs import episodes_from_logs, offline_tasks
from .episodes.pool import NO_TASK, EnvironmentFactory, EnvironmentPool, Prompts
from .episodes.rewards import RewardFunc, load_rewards
from .episodes.rollout import check_prompt_length
from .episodes.rounds import AsyncRollouts, Rollouts
from .evaluation.evaluation import evaluate_policy, joint_metrics
from .evaluation.health import health_metrics
from .evaluation.metrics import eval_name, mean_over_processes, why_not_comparable
from .evaluation.oracle import judge_refinements
from .generation.loading import load_generator
from .method.backup import critic_examples, is_answerable
from .method.batches import MicroBatch, NLACCollator, make_batches, spread_by_length, spread_by_prefix
from .method.context import context_of, fit_to_context
from .method.critic import critiques, judge_actions
from .method.losses import batch_losses, token_divergences
from .method.refinement import Criticise, check_distillation, policy_examples, question_actions, refine_actions
from .method.roles import Roles
from .method.sound_answers import ASKED_ROLES, sound_answers
from .method.target_weights import TargetUpdateCallback, TargetWeights, rate_of_samples
from .nlac_config import NLACConfig
from .prompts import NLACPrompts
from .records.folder import (
    END_OF_TRAINING,
    TrainingLogCallback,
    check_unused,
    checkpoints,
    last_steps,
    set_aside,
)
from .records.hub import model_card, push_episodes
from .records.lock import locked
from .records.records import Records
from .records.written_notes import noted_warnings, write_settings
from .replay.prioritized_replay import PrioritizedReplay
from .shards import forget_gathered, has_gathered_weights
from .training.arguments import (
    check_arguments,
    check_best_metric,
    check_optimizer,
    check_tasks,
    check_types,
    named,
    plays_prompts,
    refuse_rollout_func,
    warn_of_unused,
)
from .training.chains import answer_each
from .training.checkpoint import (
    check_identity,
    describe_run,
    drop_outdated,
    kept_options,
    load_learned,
    load_rows,
    load_state,
    options_of_iteration,
    read_state,
    save_rows,
    save_state,
    warn_of_base_model,
    warn_of_kept_options,
)
from .training.chunked_head import can_chunk_head
from .training.guards import (
    LEARNING_RATE_FACTOR,
    MAX_FAILURE_RATE,
    MAX_LEFT_BEHIND,
    FailureMonitor,
    ForgettingGuard,
    GradientGuard,
    IdleMonitor,
    LossGuard,
    TrainingStopped,
    check_played,
    nothing_played,
    short_thoughts,
    too_many_hang,
)
from .training.manifest import checkpoint_of
from .training.model import base_revision, choose_aux_loss, load_model, tokenizer_folder
from .training.passes import accumulating, split_into_passes
from .training.rehearsal import NUM_REHEARSAL_TRANSITIONS, Rehearsal
from .training.rendezvous import Rendezvous, raise_on_all
from .training.sampler import IterationSampler
from .training.saving import AtomicSavingTrainer, TrainBeginCallback, recover
from .training.stopping import StopSignals, stop_at_once
from .training.target_reuse import current_targets
from .training.tree_attention import start_sharing
from .training.unchanged import UnchangedWeightsCallback
from .types import (
    LOSSES,
    Answer,
    Episode,
    Judgement,
    Refinement,
    RunRefused,
    Sample,
    TrainingExample,
    Transition,
    all_conversations,
)


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import BitsAndBytesConfig

logger = get_logger(__name__)

MAX_STALENESS = 2  # iterations, of episodes that are played beside training
METRICS_OF_REFINED_ACTIONS = ("refine/changed_rate", "oracle/refined_better_rate")


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
        rehearsal_dataset ([`~datasets.Dataset`], *optional*):
            Supervised samples of the roles, with the conversational columns `prompt` and `completion`, mixed into the
            batches by `rehearsal_ratio`, so that the model does not forget a role. `trl-nlac rehearse` writes such a
            dataset. Not in the paper.
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

    Attributes:
        had_ended (`bool`):
            Whether the run that was resumed last had ended before, so that nothing was left to train.
    """

    _tag_names = ["trl", "nlac"]
    _name = "NLAC"
    loss_is_scaled_for_ga = False
    divergence = staticmethod(token_divergences)  # by which a distilled policy learns
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
        rehearsal_dataset: Dataset | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None] = (None, None),
        peft_config: "PeftConfig | None" = None,
        quantization_config: "BitsAndBytesConfig | None" = None,
        reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase | None] | None = None,
        rollout_func: Callable | None = None,
    ):
        refuse_rollout_func(rollout_func)
        check_arguments(
            train_dataset=train_dataset,
            model=model,
            args=args,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_funcs=reward_funcs,
            tools=tools,
            prompts=prompts,
            reward_processing_classes=reward_processing_classes,
            replay_dataset=replay_dataset,
            rehearsal_dataset=rehearsal_dataset,
            callbacks=callbacks,
            optimizers=optimizers,
            peft_config=peft_config,
            quantization_config=quantization_config,
        )
        if args is None:
            model_name = model if isinstance(model, str) else get_config_model_id(model.config)
            with named("The default of `args`"):
                args = NLACConfig(f"{model_name.split('/')[-1]}-NLAC")
        args.check()
        check_best_metric(args, eval_dataset)
        check_optimizer(args)
        warn_of_unused(args)
        if plays_prompts(environment_factory, tools, reward_funcs, train_dataset):
            environment_factory = Prompts
        self.environments = EnvironmentPool(
            environment_factory,
            tools,
            args.max_concurrent_environments,
            args.environment_timeout,
            workers=args.environment_workers,
        )
        if args.async_rollouts and not self.environments:
            raise ValueError(
                "`async_rollouts=True` plays, and there is no `environment_factory`. Give one, or leave it out."
            )
        if not self.environments:
            for_playing = {"train_dataset": train_dataset, "eval_dataset": eval_dataset, "reward_funcs": reward_funcs}
            train_dataset = offline_tasks(replay_dataset, for_playing, args.world_size)
        elif train_dataset is None and args.max_steps > 0 and not isinstance(environment_factory, dict):
            train_dataset = Dataset.from_list([NO_TASK] * args.episodes_per_iteration)
        if self.environments.is_single_step:
            args.set_single_turn()
            logger.info("Tasks are prompts, whose answers are scored: `single_step` is %s.", args.single_step)
        self.rewards = load_rewards(
            reward_funcs,
            args.reward_weights,
            self._reward_context,
            self.environments.pays,
            args.environment_workers,
            reward_processing_classes,
            args.device,
            init_kwargs={"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})},
            chat_template_kwargs=args.chat_template_kwargs,
            is_single_step=self.environments.is_single_step,
        )
        if self.environments:
            check_tasks(train_dataset, eval_dataset, self.environments.check_task)
        if self.environments.brings_tools and not args.keep_history:
            raise ValueError(
                "`keep_history=False` does not fit an agent, which chooses itself what its model sees. Leave it at "
                "`True`, and let the agent forget."
            )
        set_seed(args.seed)  # adapters are initialised randomly
        name = model if isinstance(model, str) else None
        model = load_model(model, args, peft_config, quantization_config)
        folder, revision = (None, None) if name is None else (tokenizer_folder(name), base_revision(model, args))
        choose_aux_loss(args, model)
        if processing_class is None:
            processing_class = load_processing_class(model, revision, args.trust_remote_code, folder)
        tokenizer = tokenizer_of(processing_class, model)
        if isinstance(processing_class, ProcessorMixin):
            args.set_unused_parameters()
        chat = ChatEncoder(tokenizer, args.chat_template_kwargs)
        args.action_format = choose_format(
            args.action_format,
            chat,
            self.environments.tool_schemas,
            self.environments.brings_tools,
            self.environments.is_single_step,
        )
        self.rehearsal = Rehearsal(
            rehearsal_dataset,
            args.rehearsal_source,
            args.rehearsal_ratio,
            chat,
            args.seed + args.process_index,
            asked=(*ASKED_ROLES, "successor") if args.bootstrap == "implicit" else ASKED_ROLES,
        )

        super().__init__(
            model=model,
            args=args,
            data_collator=identity,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model.add_model_tags(self._tag_names)
        generator = load_generator(
            self.model,
            args,
            self.accelerator,
            tokenizer,
            ending_token_ids(tokenizer, chat.stop_ids, model.generation_config),
            trust_remote_code=args.trust_remote_code,
            gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
            revision=revision,
        )
        fit_to_context(args, context_of(generator, self.model))
        asking = (chat, prompts or NLACPrompts(), args, args.vllm_structured_outputs_regex)
        shows_progress = not args.disable_tqdm and self.is_world_process_zero()
        self.roles = Roles(generator, *asking, shows_progress=shows_progress)
        if args.policy_loss_type == "distill":
            check_distillation(self.roles)
        self.rollouts = Rollouts(self.environments, self.roles, self.rewards)
        if args.async_rollouts:
            self.rollouts = AsyncRollouts(
                self.environments,
                self.roles,
                self.rewards,
                Roles(generator.beside(), *asking),
                MAX_STALENESS * args.updates_per_iteration,
                args.updates_per_iteration,
                args.seed + args.process_index,
            )
        self.replay = PrioritizedReplay(
            args.replay_buffer_size,
            priority_exponent=args.priority_exponent,
            seed=args.seed + args.process_index,
            memory_limit=None if args.replay_buffer_memory is None else int(args.replay_buffer_memory * 2**30),
            spill_directory=args.output_dir,
        )
        if replay_dataset is not None:
            shares = (args.process_index, args.world_size, args.max_prompt_length)
            self.replay.fill(episodes_from_logs(replay_dataset, self.roles.actions, self.roles.prompts, *shares))
        if self.environments:
            check_prompt_length(self.environments, self.roles)
        is_sharded_later = self.is_deepspeed_enabled or self.is_fsdp_enabled  # the callback starts the average then
        if args.generation_kwargs and not is_sharded_later:
            self.roles.check_generation(self.model)
        update_rate = args.target_update_rate
        if args.target_update_unit == "sample":
            update_rate = rate_of_samples(update_rate, args.target_sync_steps * args.global_batch_size)
        self.target_weights = TargetWeights(None if is_sharded_later else self.model, update_rate)
        self.add_callback(TargetUpdateCallback(self.target_weights, args.target_sync_steps))
        self.records = Records(args, chat.decode)
        self._training_log = TrainingLogCallback()
        self.add_callback(self._training_log)
        self._has_opened_folder = False
        self.add_callback(TrainBeginCallback(self._begin))
        self.add_callback(UnchangedWeightsCallback())
        self.failures = FailureMonitor()
        self.idle = IdleMonitor()
        self.forgetting = ForgettingGuard(args.on_forgetting)
        self.loss_guard = LossGuard()
        self.gradient_guard = GradientGuard()
        self.rendezvous = Rendezvous(args.ddp_timeout)
        if warning := short_thoughts(chat.template, args.max_completion_length):
            logger.warning(warning)
        self._batches: deque[list[TrainingExample]] = deque()
        self._taken: list[list[TrainingExample]] = []  # micro-batches of the optimizer step under way
        self._identity = describe_run(
            model,
            chat,
            vars(self.roles.prompts),
            args.action_format,
            {"name": self.environments.name, "tools": self.environments.tool_schemas},
            optimizer=OptimizerNames(args.optim).value if optimizers[0] is None else type(optimizers[0]).__name__,
        )
        self._saved_losses: list[float] | None = None  # of the checkpoint
        self._loss_start = 0  # step since which they are summed
        self._logged_before: list[dict[str, float]] = []  # at step 0, before training started
        self._is_compared = True  # the last evaluation, with others
        self.had_ended = False
        self.stop_signals = StopSignals()
        set_seed(args.seed, device_specific=True)  # processes sample differently

    @property
    def num_environment_steps(self) -> int:
        """Number of environment steps of training so far, over all processes."""
        return self.records.num_environment_steps

    @cached_property
    def _collate(self) -> NLACCollator:
        """Makes the micro-batches, in the form that the model can read, which is tried when training starts."""
        of_run = (self.model_wrapped, self.model.config, self.args)
        keeps_logits = not can_chunk_head(*of_run)
        shares = self.shares_prefixes and start_sharing(*of_run)
        pad_token_id = self.roles.chat.tokenizer.pad_token_id
        return NLACCollator(pad_token_id, shares, keeps_logits, self.args.device)

    # A run and its folder

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs) -> TrainOutput:
        """
        Train, from the start or from a checkpoint. The run's folder, `output_dir`, is locked meanwhile.

        After the first SIGINT (Ctrl-C) or SIGTERM training stops at the end of the optimizer step under way, with the
        rollout before it, if there is one, and a checkpoint is saved; after the second it stops at once. Both close
        the environments. In a thread other than the main one no signal is seen.

        Args:
            resume_from_checkpoint (`str` or `bool`, *optional*):
                Checkpoint to resume from, or `True` for the newest one in `output_dir`. What the folder has of later
                steps is set aside. From its newest checkpoint, a run that has ended already is loaded, and nothing of
                it is written again.
            *args, **kwargs:
                As in [`~transformers.Trainer.train`].

        Raises:
            RunRefused: If another run writes into the folder, if it has a run or a model already that is neither
                resumed nor overwritten (`overwrite_output_dir`), or if the checkpoint is damaged or of another run.
            KeyboardInterrupt: After SIGINT.
            SystemExit: After SIGTERM, with the code 143.
            TrainingStopped: If training cannot continue; a checkpoint is saved.
        """
        total = self._num_steps() if resume_from_checkpoint else None
        with ExitStack() as stack:
            stack.enter_context(self.stop_signals.noted())
            stack.callback(self.environments.close)
            stack.callback(self._close_progress_bars)
            stack.callback(setattr, self, "is_in_train", False)
            stack.callback(self.rollouts.stop)
            self._on_first_process(lambda: stack.enter_context(locked(self.args.output_dir)))
            checkpoint, self.had_ended = self._on_first_process(
                lambda: self._open_folder(resume_from_checkpoint, total)
            )
            self._has_opened_folder = True
            if self.is_world_process_zero() and not self.had_ended:
                write_settings(self.args, get_config_model_id(self.model.config))
                stack.enter_context(noted_warnings(self.args.output_dir, lambda: self.state.global_step))
            self._loss_start = 0
            # Transformers begins a new history; the log of the run keeps these, too.
            self._logged_before = [log for log in self.state.log_history if checkpoint is None and log["step"] == 0]
            # A run that an error ended leaves these behind. A checkpoint has batches and failures of its own.
            self._batches.clear()
            self.failures.failed.clear()
            self.loss_guard.num_batches = self.gradient_guard.num_in_a_row = 0
            if checkpoint is not None:
                self.args.eval_on_start = False  # the run was evaluated at its start
            else:
                # A buffer that was loaded is of another run, with other versions of target weights and other limits.
                self.replay.targets.clear()
                self.replay.take_in()
            output = super().train(checkpoint, *args, **kwargs)
            return output._replace(training_loss=output.metrics["train_loss"])

    def _close_progress_bars(self) -> None:
        """End the lines of bars that an error left open, so that what it says begins on a line of its own."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback):
                for bar in filter(None, (callback.prediction_bar, callback.training_bar)):
                    bar.close()

    def _on_first_process(self, action: Callable[[], Any]) -> Any:
        """Call on the first process; the result, or the error, is that of all."""
        result = error = None
        if self.is_world_process_zero():
            try:
                result = action()
            except Exception as raised:
                error = raised
        self.rendezvous.wait("of which the first looks into the folder of the run, and checks what it reads")
        result, error = broadcast_object_list([result, error])
        if error is not None:
            raise error
        return result

    def _open_folder(
        self, resume_from_checkpoint: str | bool | None, num_steps: int | None
    ) -> tuple[str | None, bool]:
        """
        Check the folder of the run and the checkpoint, then set aside what is of later steps.

        Returns:
            `tuple[str | None, bool]`: the checkpoint to resume from, and whether training has ended there.
        """
        run = Path(self.args.output_dir)
        recover(run)
        if not resume_from_checkpoint:
            if not self.args.overwrite_output_dir:
                check_unused(run)
            first = 0 if self.state.log_history else -1  # what this trainer has evaluated is no remnant
            set_aside(run, first, first, with_model=self.args.overwrite_output_dir)
            return None, False
        found = list(checkpoints(run).values())
        if resume_from_checkpoint is True and not found:
            raise RunRefused(f"`resume_from_checkpoint` is True, and {run} has no checkpoint.")
        checkpoint = found[-1] if resume_from_checkpoint is True else Path(resume_from_checkpoint)
        is_newest = bool(found) and checkpoint.resolve() == found[-1].resolve()
        state = read_state(checkpoint)
        check_identity(checkpoint, state["identity"], self._identity)
        self.rehearsal.check(checkpoint)
        warn_of_kept_options(checkpoint, state["kept_options"], self.args)
        warn_of_base_model(checkpoint, self.model)
        saved = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        step, ends = saved.global_step, last_steps(run)
        last = max(ends, default=-1)
        # A run can end before its last step, and keep none but its best checkpoint.
        is_last = last < saved.max_steps or saved.best_global_step == step
        has_ended = is_newest and last >= step and is_last and saved.max_steps >= num_steps
        is_own = checkpoint.parent.resolve() == run.resolve()
        if not is_own:
            check_unused(run)
            set_aside(run, -1, -1)
        elif has_ended or step > num_steps or (step == num_steps and step in ends):
            logger.warning(
                f"Nothing is left to train: {checkpoint} is at step {step}, and training ends at step "
                f"{last if has_ended else num_steps}. Nothing is written. To train on, raise `max_steps` or "
                "`num_train_epochs`."
            )
            return str(checkpoint), True
        else:
            set_aside(run, step, state["recorded"])
        return str(checkpoint), False

    def _num_steps(self) -> int:
        """Number of optimizer steps at which training ends."""
        if self.args.max_steps > 0:
            return self.args.max_steps
        return self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]

    # Algorithm 1

    def _iteration(self, tasks: list[dict[str, Any]]) -> list[list[TrainingExample]]:
        """Run one iteration of algorithm 1 up to its gradient steps; returns their micro-batches."""
        self._wait_for_rollouts(for_all=self._is_last_iteration)
        raise_on_all(self.rollouts.lost)
        with self._generating():
            episodes = self._play(tasks)
            self._store(episodes)
            if self.rehearsal.is_due:
                self._write_rehearsal()
            samples = self.replay.sample(self.args.samples_per_iteration // self.args.world_size)
            transitions = [sample.transition for sample in samples]
            judgements = self._judge(transitions[: self.args.audit_samples])
            refinements = self._refine(transitions)
        with self.target_weights.swapped_into(self.model), self._generating(), self.records.timed("target"):
            targets = self._targets(samples)
        if refinements is None:
            with self._generating():
                refinements = self._refine(transitions, targets)
        self._play_on()
        batches = self._make_batches(samples, targets, refinements)
        if lost := self._record_iteration(samples, judgements, targets, refinements, batches):
            self._restore(lost)
            return self._iteration(tasks)
        return batches

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if return_outputs:
            raise ValueError("The NLACTrainer does not support returning outputs")
        distills = self.args.policy_loss_type == "distill"
        teacher = partial(self.target_weights.swapped_into, self.model) if distills else None
        aux_losses = [] if self.args.router_aux_loss_coef else None

        def compute(batch: MicroBatch) -> torch.Tensor:
            return batch_losses(model, batch, teacher, aux_losses, self.divergence)

        batch, losses = self.loss_guard.finite_losses(compute, inputs, self._collate)
        has_priority = (batch.loss_ids == LOSSES.index("critic")) & (batch.transition_ids >= 0)
        self.replay.update_priorities(
            batch.transition_ids[has_priority].tolist(), losses.detach()[has_priority].tolist()
        )
        num_tokens = batch.tokens.inputs["input_ids"].numel()
        self.records.add_losses(batch.examples, losses.detach(), num_tokens, self.accelerator.reduce)
        coefficients = losses.new_tensor([self.args.critic_loss_coef, self.args.policy_loss_coef, 1.0])
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

    def _run_epoch(self, *args, **kwargs) -> None:
        if self.state.global_step < self.state.max_steps and not self.had_ended:  # else it would train for a step more
            super()._run_epoch(*args, **kwargs)

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
            self.records.add_batch()
            if not self._batches:
                self.records.end_iteration()
                if self.args.logging_strategy == "no":  # no log takes them
                    self.records.take(self.state.global_step)
            if len(self._taken) == self.args.gradient_accumulation_steps:
                self._taken.clear()
        except TrainingStopped:
            self._batches.extendleft(reversed(self._taken))  # a resumed run takes the whole step again
            self._taken.clear()
            self._save_checkpoint(self.model, trial=None)
            raise
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

    def _wait_for_rollouts(self, for_all: bool) -> None:
        """
        Wait for the episodes played beside training that would be too old for the next iteration, or for all. What
        ended some on one process is not raised before all have met.
        """
        with self.records.timed("rollout"):
            if self.args.async_rollouts and any(gather_object([self.rollouts.are_held])):
                self._play_on()  # for example after a callback has generated with other weights
            self.rollouts.wait(self.state.global_step, for_all)
            self.rendezvous.wait()

    def _play(self, tasks: list[dict[str, Any]]) -> list[Episode]:
        """Play the tasks, then others until training can start on every process; nothing without an environment."""
        episodes: list[Episode] = []
        num_empty, lacks = 0, not len(self.replay)
        with self.records.timed("rollout"):
            while self.environments:
                played = self.rollouts.play(tasks, self.state.global_step, lacks, self._is_last_iteration)
                episodes += played
                self.rendezvous.wait()
                raise_on_all(self.rollouts.lost)
                try:
                    self._check_failures(played)
                except TrainingStopped:
                    self._store(episodes)  # for the checkpoint
                    raise
                lacks = not (len(self.replay) or any(episode.num_turns for episode in episodes))
                num_empty = num_empty + 1 if lacks else 0
                if not any(gather_object([lacks])):
                    break
                check_played(gather_object([(num_empty, nothing_played(played) if num_empty else "")]))
                tasks = self._other_tasks(len(tasks))
        return episodes

    def _other_tasks(self, number: int) -> list[dict[str, Any]]:
        """Draw tasks, for what is played before training can start."""
        return [self.train_dataset[place] for place in torch.randint(len(self.train_dataset), (number,)).tolist()]

    def _check_failures(self, episodes: list[Episode]) -> None:
        """Stop where too many environments fail or hang."""
        self.failures.update(gather_object([episode.failure is not None for episode in episodes]))
        if self.failures.is_exceeded:
            raise TrainingStopped(self.failures.report(self._next_checkpoint, self.environments.last_failure))
        num_hanging = max(gather_object([self.environments.num_left_behind]))
        if num_hanging > MAX_LEFT_BEHIND:
            raise TrainingStopped(too_many_hang(num_hanging, self._next_checkpoint))

    def _store(self, episodes: list[Episode]) -> list[int]:
        """Store episodes and record them. Returns the ids of their conversations, see [`PrioritizedReplay.add`]."""
        numbers = self.replay.add(all_conversations(episodes))
        self.records.add_episodes(episodes, numbers, self.state.global_step)
        for age in self.rollouts.take_staleness():
            self.records.metrics["rollout/staleness"].append(age)
        return numbers

    def _play_on(self) -> None:
        """Let episodes be played beside training with the policy's weights."""
        if self.args.async_rollouts:
            with self._generating():
                self.rollouts.play_on()

    def _finish_rollouts(self) -> None:
        """
        Wait for the episodes that are played beside training, and store them. Nothing is under way then.

        Raises:
            BaseException: If some are lost, on all processes, with the others stored.
        """
        if self.args.async_rollouts and any(gather_object([self.rollouts.are_under_way])):
            self._wait_for_rollouts(for_all=True)
            episodes = self.rollouts.take()
            self.failures.update(gather_object([episode.failure is not None for episode in episodes]))
            self._store(episodes)
            raise_on_all(self.rollouts.lost)

    @property
    def _is_last_iteration(self) -> bool:
        return self.state.global_step + self.args.updates_per_iteration >= self.state.max_steps

    def _write_rehearsal(self) -> None:
        """Let the initial model answer in every role about its first transitions, to rehearse the answers later."""
        with self.records.timed("rehearsal"), self.roles.tally.unrecorded():
            samples = self.replay.sample(max(1, NUM_REHEARSAL_TRANSITIONS // self.args.world_size))
            transitions = [sample.transition for sample in samples]
            answers = sound_answers(self.roles, transitions, self.args.bootstrap, self.args.num_refinements)
        own = [
            (role, self.roles.builder.opened(a.prompt), a.token_ids) for role, found in answers.items() for a in found
        ]
        self.rehearsal.fill(gather_object(own))

    def _judge(self, transitions: list[Transition]) -> list[Judgement | None]:
        """Judge stored actions for the audit trail. Metrics and random state stay as they were."""
        if not transitions:
            return []
        # The seeds of answers come from torch's global generator.
        with self.records.timed("audit"), self.roles.tally.unrecorded(), torch.random.fork_rng(devices=[]):
            return judge_actions(self.roles, [transition.state_action for transition in transitions])

    def _targets(self, samples: list[Sample]) -> list[Answer]:
        """Take the Bellman targets that are kept and not too old, and write the others."""
        version, args = self.target_weights.num_updates, self.args
        return current_targets(self.roles, samples, self.replay.targets, version, args.target_max_age, args.bootstrap)

    def _refine(
        self, transitions: list[Transition], targets: list[Answer] | None = None, criticise: Criticise = critiques
    ) -> list[Refinement | None] | None:
        """
        Refine fresh actions after their critiques; with `targets`, the stored actions after these. It is called
        without them first, and again with them where it returned `None`.
        """
        with self.records.timed("refine"):
            options = {"num_refinements": self.args.num_refinements, "keeps_best": not self.args.refine_best_actions}

            def refine(places: list[int]) -> list[Refinement | None]:
                judged = {} if targets is None else {i: targets[place] for i, place in enumerate(places)}
                chosen = [transitions[place] for place in places]
                if self.args.policy_loss_type == "distill":
                    return question_actions(self.roles, chosen, judged, criticise)
                return refine_actions(self.roles, chosen, targets=judged, criticise=criticise, **options)

            return answer_each(self.roles, "refine", transitions, refine)

    def _record_iteration(
        self,
        samples: list[Sample],
        judgements: list[Judgement | None],
        targets: list[Answer],
        refinements: list[Refinement | None],
        batches: list[list[TrainingExample]],
    ) -> list[str]:
        """
        Record what an iteration made, and stop a run that learns nothing. Return the forgotten roles that a checkpoint
        must bring back.
        """
        transitions = [sample.transition for sample in samples]
        metrics = mean_over_processes(self._iteration_metrics(transitions, targets, refinements, batches))
        self.records.add_tokens(self.roles.tally.tokens)
        self.state.num_input_tokens_seen = self.records.num_tokens
        forgotten = self.records.add_samples(
            samples, judgements, targets, refinements, metrics, self.state.global_step
        )
        if forgotten and self.args.on_forgetting != "warn":
            return forgotten
        self._stop_if_idle(metrics)
        return []

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
        metrics = {
            **{f"{loss}/num_examples": float(numbers[loss]) for loss in ("critic", "policy")},
            **self.roles.take_metrics(),
            **health_metrics(transitions, targets, refinements),
            **(judge_refinements(oracle, transitions, refinements) if oracle is not None else {}),
            "environment/num_left_behind": float(self.environments.num_left_behind),
            "replay/size": float(len(self.replay)),
            "replay/num_left_out": float(self.replay.num_left_out),
            "replay/priority_mean": self.replay.priority_mean,
            "target/distance": self.target_weights.distance(self.model),
        }
        if self.args.policy_loss_type == "distill":  # there are no refined actions
            return {name: value for name, value in metrics.items() if name not in METRICS_OF_REFINED_ACTIONS}
        return metrics

    def _stop_if_idle(self, metrics: dict[str, float]) -> None:
        """Stop where neither loss had an example for too long, and warn where one of them had none."""
        coefficients = {"critic": self.args.critic_loss_coef, "policy": self.args.policy_loss_coef}
        self.idle.update({loss: metrics[f"{loss}/num_examples"] for loss in coefficients if coefficients[loss]})
        causes = list(self.records.formats.causes().values())
        if self.idle.is_exceeded:
            raise TrainingStopped(self.idle.report(self._next_checkpoint, causes))
        for loss in self.idle.newly_idle:
            logger.warning(self.idle.warning(loss, causes))

    def _restore(self, forgotten: list[str]) -> None:
        """Stop, or go back to a healthy checkpoint with a lower learning rate. The replay buffer stays."""
        run_dir, guard = Path(self._get_output_dir(None)), self.forgetting
        step, steps = self._on_first_process(lambda: guard.choose(run_dir))
        if step is None:
            causes = [self.records.health.describe(name) for name in forgotten]
            others = [step for step in steps if step != self.state.global_step]  # this one is saved again
            raise TrainingStopped(guard.report(self._next_checkpoint, others, causes))
        checkpoint = checkpoint_of(run_dir, step)
        self._load_learned(checkpoint, LEARNING_RATE_FACTOR)
        forget_gathered(self.model)
        state = load_learned(checkpoint, self.args.process_index, self.target_weights)
        self.records.health.load_state_dict(state["health"])
        self.replay.targets.clear()  # other target weights wrote them
        self.records.end_iteration()
        guard.restores.append((step, self.state.global_step + 1))
        logger.warning(
            f"Back to the weights of step {step}, with the learning rate times {LEARNING_RATE_FACTOR}: return "
            f"{len(guard.restores)} of at most {guard.max_restores}."
        )
        self.control.should_save = True  # after the next step, so that a resumed run has gone back, too

    def _make_batches(
        self, samples: list[Sample], targets: list[Answer], refinements: list[Refinement | None]
    ) -> list[list[TrainingExample]]:
        """Make the micro-batches of an iteration: examples of both losses, and of rehearsal."""
        args, num_updates = self.args, self.args.num_updates_per_generation
        step_size = args.gradient_accumulation_steps * args.per_device_train_batch_size
        of_critic = of_policy = [None] * len(samples)
        if args.critic_loss_coef:
            of_critic = critic_examples(self.roles, samples, targets)
        if args.policy_loss_coef:
            of_policy = policy_examples(
                self.roles,
                samples,
                refinements,
                distills=args.policy_loss_type == "distill",
                masks_noncompliant=args.mask_noncompliant_refinements,
            )
        self._leave_out_unanswerable(
            [sample for sample, *examples in zip(samples, of_critic, of_policy, strict=True) if not any(examples)]
        )
        return make_batches(
            samples * num_updates,
            of_critic * num_updates,
            of_policy * num_updates,
            [self.rehearsal.draw(step_size) for _ in range(num_updates * len(samples) // step_size)],
            args.gradient_accumulation_steps,
            self.roles.chat.end_of_turn_id,
            spread_by_prefix if self._collate.shares_prefixes else spread_by_length,
        )

    def _leave_out_unanswerable(self, unused: list[Sample]) -> None:
        """Draw those of the samples without an example no more that can never have one: their prompts are too long."""
        # Otherwise the policy can learn in a state about which the backup's question is too long.
        needs_target = not self.args.policy_loss_coef
        too_long = [s for s in unused if not is_answerable(self.roles, s.transition, needs_target)]
        self.replay.leave_out([sample.transition_id for sample in too_long])

    def _reward_context(self) -> dict[str, Any]:
        """Additional arguments of reward functions, as in TRL."""
        return {
            "trainer_state": self.state,
            "log_metric": self.records.add_function_metric,
        }

    # Logs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # the log of training steps; those of evaluation and of the end have their own metrics
            logs.update(self.records.take(self.state.global_step))
            logs["nonfinite_losses"] = self.loss_guard.num_dropped
            logs["nonfinite_gradients"] = self.gradient_guard.num_skipped
            if self.args.on_forgetting == "restore":
                logs["health/num_restores"] = len(self.forgetting.restores)
        if END_OF_TRAINING in logs:
            # Of all steps, also of those before the run was resumed.
            logs["train_loss"] = self._total_loss_scalar / max(1, self.state.global_step - self._loss_start)
            if self.had_ended:
                return
            self._finish_rollouts()
            self.records.end_iteration()
            self.records.write(self.state.global_step)
        super().log(logs, start_time)

    def _maybe_log_save_evaluate(self, *args, **kwargs) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        number = self.stop_signals.agreed()
        if not number:
            return
        if self.saved_step != self.state.global_step:
            self._save_checkpoint(self.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        follows = "`train(resume_from_checkpoint=True)` goes on."
        if self.args.save_only_model:
            follows = "Training cannot go on from it: `save_only_model=True` saves no more than the model."
        logger.warning(
            f"Training is stopped by {Signals(number).name} at step {self.state.global_step} of "
            f"{self.state.max_steps}; {self._next_checkpoint} is saved. {follows}"
        )
        stop_at_once(number)

    # Evaluation

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        """
        Evaluate, as [`~transformers.Trainer.evaluate`] does. In a folder with a run that this trainer has neither
        trained nor resumed, nothing is written down.
        """
        self._training_log.is_on = self._on_first_process(self._may_record)
        if not self._training_log.is_on:
            logger.warning(
                f"`output_dir` {self.args.output_dir!r} has a run that this trainer has not trained: this evaluation "
                "is not written down. Choose another folder for that."
            )
        return super().evaluate(*args, **kwargs)

    def _may_record(self) -> bool:
        """Whether the folder of the run is this trainer's, or has none."""
        if self._has_opened_folder:
            return True
        try:
            check_unused(self.args.output_dir)
        except RunRefused:
            return False
        return True

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
        self._finish_rollouts()
        if not self.is_in_train:
            self._place_model()
        args, device, rank, dataset = self.args, self.accelerator.device, self.args.process_index, dataloader.dataset
        check_types(eval_dataset=dataset)
        check_tasks(None, dataset, self.environments.check_task)
        tasks = {i: dataset[i] for i in range(rank, len(dataset), args.world_size)}
        numbers = (args.num_eval_episodes, args.num_eval_critiques, args.num_eval_critiques, args.seed)
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(args.seed + rank)
                with (
                    self.roles.tally.uncounted(),
                    self.roles.tally.unrecorded(),
                    self.roles.generator.session(self.model_wrapped),
                ):
                    evaluation = evaluate_policy(
                        self.environments,
                        tasks,
                        self.roles,
                        *numbers,
                        rewards=self.rewards,
                        once_played=self.rendezvous.wait,
                    )
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

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False) -> dict[str, float]:
        stopping = [c for c in self.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)]
        patience, stops = [c.early_stopping_patience_counter for c in stopping], self.control.should_training_stop
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
        self._is_compared = self._is_comparable(metrics)
        if not self._is_compared:
            for callback, counter in zip(stopping, patience, strict=True):
                callback.early_stopping_patience_counter, self.control.should_training_stop = counter, stops
        elif isinstance(self.lr_scheduler, ReduceLROnPlateau | GreedyLR) and not skip_scheduler:
            self.lr_scheduler.step(metrics[eval_name(self.args.metric_for_best_model)])
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        return self._is_compared and super()._determine_best_metric(metrics, trial)

    def _is_comparable(self, metrics: dict[str, float]) -> bool:
        """Whether an evaluation can be compared with others: it was played, and few environments failed."""
        args = self.args
        if args.metric_for_best_model is None:
            return True
        reason = why_not_comparable(metrics, args.metric_for_best_model, MAX_FAILURE_RATE)
        if reason is not None:
            logger.warning(f"The evaluation at step {self.state.global_step} is not compared with others: {reason}.")
        return reason is None

    def _place_model(self) -> None:
        """
        Put the model on its device, where that was left to training, or to an evaluation loop of transformers.

        Raises:
            ValueError: If it is still to be sharded by FSDP2.
        """
        if self.place_model_on_device or self.is_model_parallel or has_gathered_weights(self.model):
            return
        if self.is_fsdp_enabled:
            raise ValueError(
                "Under FSDP2 the model is sharded when training begins, and cannot be evaluated before. Set "
                "`eval_on_start=True`, or evaluate it in one process."
            )
        self._move_model_to_device(self.model, self.args.device)

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

    def _begin(self) -> None:
        """Go on, before the first step, with what the trainer's own checkpoint has not restored."""
        self._taken.clear()
        self.state.log_history[:0] = self._logged_before
        self._find_best()
        self._restore_losses()

    def _restore_losses(self) -> None:
        """Go on with the sums of the losses that a checkpoint had, in place of new ones."""
        if self._saved_losses is not None:
            loss, self._total_loss_scalar, self._globalstep_last_logged, self._loss_start = self._saved_losses
            self._tr_loss.fill_(loss)
            self._saved_losses = None
        else:
            self._loss_start = self.state.global_step

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """
        Save the model, and with `push_to_hub=True` upload it, as [`~transformers.Trainer.save_model`] does. What is
        saved elsewhere than into the run's folder, such as the target weights, is not uploaded.
        """
        is_elsewhere = output_dir is not None and Path(output_dir).resolve() != Path(self.args.output_dir).resolve()
        super().save_model(output_dir, _internal_call or is_elsewhere)

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            # Also into the run's own folder, which is uploaded during training.
            for directory in {output_dir or self.args.output_dir, self.args.output_dir}:
                self.roles.prompts.save_pretrained(directory)
                self.args.save_pretrained(directory)

    def _save_checkpoint(self, model, trial) -> None:
        lost = None
        try:
            self._finish_rollouts()
        except Exception as error:  # of a server, for example, on all processes; what there is is saved first
            lost = error
        start = time.perf_counter()
        super()._save_checkpoint(model, trial)
        self.records.metrics["time/save"].append(time.perf_counter() - start)
        self.records.metrics["checkpoint/size_mb"].append(sum(self.checkpoint_sizes.values()) / 1e6)
        if lost is not None:
            raise lost

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.forgetting.note_checkpoint(self.state.global_step, not self.records.health.is_forgetting)
        state = {
            "world_size": self.args.world_size,
            **self.records.state_dict(),
            "rehearsal_rng": self.rehearsal.rng.bit_generator.state,
            "rehearsal_owed": self.rehearsal.owed,
            "rehearsal_is_asked": self.rehearsal.is_asked,
            "nonfinite_losses": self.loss_guard.num_dropped,
            "nonfinite_gradients": self.gradient_guard.num_skipped,
            "target_updates": self.target_weights.num_updates,
            "restores": self.forgetting.restores,
            "healthy_checkpoints": self.forgetting.healthy,
            "kept_options": kept_options(self.args),
            "iteration_options": options_of_iteration(self.args),
            "max_prompt_length": self.args.max_prompt_length,
            "idle_losses": {} if self.idle.is_exceeded else self.idle.num_iterations,
            "environment_failures": [] if self.failures.is_exceeded else list(self.failures.failed),
            "losses": [self._tr_loss.item(), self._total_loss_scalar, self._globalstep_last_logged, self._loss_start],
            "identity": self._identity,
        }
        rank = self.args.process_index
        writes = self.args.should_save
        if writes:
            self.rehearsal.save(Path(output_dir))
        save_state(Path(output_dir), rank, self.replay, self.target_weights, list(self._batches), state, writes)
        save_rows(Path(output_dir), rank, self.records.rows())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.target_weights.start(self.model)
            rank, world_size = self.args.process_index, self.args.world_size
            batches, state = load_state(Path(checkpoint), rank, world_size, self.replay, self.target_weights)
            starts_again = drop_outdated(Path(checkpoint), state["iteration_options"], self.args, self.replay, batches)
            self._batches = deque(batches)
            self.records.load_state_dict(state)
            self.records.load_rows(load_rows(Path(checkpoint), rank, world_size))
            if starts_again or state["world_size"] != world_size:
                self.records.end_iteration()
            self._saved_losses = state["losses"]
            self.loss_guard.num_dropped = state["nonfinite_losses"]
            self.gradient_guard.num_skipped = state["nonfinite_gradients"]
            self.target_weights.num_updates = state["target_updates"]
            self.rehearsal.load(Path(checkpoint))
            self.rehearsal.is_asked = state["rehearsal_is_asked"]
            self.forgetting.restores = state["restores"]
            if state["world_size"] == world_size:  # others have no state of some process
                self.forgetting.healthy = state["healthy_checkpoints"]
            if state["max_prompt_length"] != self.args.max_prompt_length:
                self.replay.take_in()  # what was too long may not be so now; what still is, is left out once drawn
            self.idle.num_iterations = state["idle_losses"]
            self.failures.update(state["environment_failures"])
            if "rehearsal_rng" in state:
                self.rehearsal.rng.bit_generator.state = state["rehearsal_rng"]
                self.rehearsal.owed = state["rehearsal_owed"]
