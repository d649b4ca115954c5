# SPDX-License-Identifier: Apache-2.0

"""The options of a run."""

import math
import os
from copy import deepcopy
from dataclasses import asdict, dataclass
from inspect import getfullargspec
from typing import Any

from .options.checks import check, check_at_least, check_between, check_choices, check_types
from .options.environment_options import EnvironmentOptions
from .options.generation_options import GenerationOptions
from .options.record_options import RecordOptions
from .options.role_options import RoleOptions
from .options.training_options import TrainingOptions
from .private_names import _BaseConfig
from .secrets import hide_secrets, remember_secrets


MAX_SAMPLES = 10**6  # of an iteration, and of its episodes
# Options of an iteration that follow from others where they are left open.
_LEFT_OPEN = ("samples_per_iteration", "episodes_per_iteration")
SAMPLES_PER_STEP = 8  # by default, transitions trained on for each environment step of the longest episodes
BATCHES_PER_ITERATION = 8  # at least; with fewer, updates of the same few samples follow each other


@dataclass
class NLACConfig(TrainingOptions, RoleOptions, GenerationOptions, EnvironmentOptions, RecordOptions, _BaseConfig):
    r"""
    Configuration class for the [`NLACTrainer`].

    This class includes only the parameters that are specific to NLAC training. For a full list of training arguments,
    please refer to the [`~transformers.TrainingArguments`] documentation. Note that default values in this class may
    differ from those in [`~transformers.TrainingArguments`]. What is trained, and on what, is in
    [`~options.training_options.TrainingOptions`], how the roles act and generate in
    [`~options.role_options.RoleOptions`], what generates in [`~options.generation_options.GenerationOptions`], the
    instances of environments in [`~options.environment_options.EnvironmentOptions`], and what a run writes down in
    [`~options.record_options.RecordOptions`].
    """

    _VALID_DICT_FIELDS = _BaseConfig._VALID_DICT_FIELDS + [
        "model_init_kwargs",
        "chat_template_kwargs",
        "generation_kwargs",
        "role_sampling",
    ]

    def __new__(cls, *args, **options):
        taken = getfullargspec(cls.__init__)
        known = {*taken.args, *taken.kwonlyargs}
        if taken.varkw is None and (unknown := [name for name in options if name not in known]):
            from .options.of_grpo import HINTS, no_option  # for an error alone

            written = {name: name for name in (*cls.__dataclass_fields__, *HINTS)}
            errors = [no_option(f"`{cls.__name__}` has no option {name!r}", name, written) for name in unknown]
            raise TypeError(" ".join(errors))
        return super().__new__(cls)

    def __post_init__(self):
        remember_secrets(vars(self))
        is_path = self.output_dir is None or isinstance(self.output_dir, (str, os.PathLike))
        check(self, "output_dir", is_path, "a path, or None")
        check_types(self)  # before transformers reads them
        for ending in ("", "_kwargs"):  # renamed in transformers; TRL sets the old one by default, which would warn
            old, new = f"gradient_checkpointing{ending}", f"activation_checkpointing{ending}"
            if new in vars(self) and vars(self)[new] is None:
                vars(self)[new] = vars(self)[old]
        follows_metric = self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
        if (self.load_best_model_at_end or follows_metric) and self.metric_for_best_model is None:
            # The default of transformers is the loss of evaluation, and there is none.
            self.metric_for_best_model, self.greater_is_better = "episode/success_rate", True
        _BaseConfig.__post_init__(self)
        if follows_metric:
            mode = "max" if self.greater_is_better else "min"
            self.lr_scheduler_kwargs = {"mode": mode, **(self.lr_scheduler_kwargs or {})}
        self.output_dir = os.path.abspath(self.output_dir)  # an environment may change the working directory
        self._filled: dict[str, int | None] = {}  # options that the user left open, and their values
        self.check()

    def check(self) -> None:
        """
        Check all options, also those that were changed since the configuration was made, and set those that were left
        open.

        Raises:
            ValueError: If one has a wrong type or value; the message names it.
        """
        for options in (RoleOptions, GenerationOptions, EnvironmentOptions, RecordOptions):
            options.__post_init__(self)
        self._check_values()
        self._check_what_is_trained()
        self._fill_in()

    def _check_values(self) -> None:
        """Check the options one by one."""
        check_choices(self, "bootstrap", "policy_loss_type", "examples")
        check_at_least(
            self,
            1,
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "replay_buffer_size",
            "max_tokens_per_batch",
            "per_device_eval_batch_size",
        )
        check_at_least(
            self,
            0,
            "target_max_age",
            "weight_decay",
            "num_train_epochs",
            "router_aux_loss_coef",
            "save_steps",
            "eval_steps",
            "save_total_limit",
            "dataloader_num_workers",
        )
        check(self, "max_steps", self.max_steps >= -1, "not negative, or -1 to train for `num_train_epochs`")
        check_between(self, 1, MAX_SAMPLES, "episodes_per_iteration", "samples_per_iteration")
        check_between(self, 1, 1000, "num_updates_per_generation")
        check_between(self, 1, 10_000, "num_eval_episodes")
        check_between(self, 0, 100_000, "num_eval_critiques")
        # Larger factors make losses, gradients or weights overflow.
        check_between(self, 0, 1_000_000, "critic_loss_coef", "policy_loss_coef", "policy_kl_coef")
        check_between(self, 0, 1000, "learning_rate")
        check_between(self, 0, 1, "priority_exponent", "max_environment_failure_rate")
        check(self, "remove_unused_columns", not self.remove_unused_columns, "False: columns are keywords of `reset`")
        check(self, "target_update_rate", 0 < self.target_update_rate <= 1, "above 0 and at most 1")
        fits = self.replay_buffer_size >= self.max_turns  # an episode must fit
        check(self, "replay_buffer_size", fits, f"at least `max_turns={self.max_turns}`")
        for name in ("split_batches", "dispatch_batches"):
            if vars(self.accelerator_config)[name]:
                raise ValueError(
                    f"`accelerator_config={{'{name}': True}}` divides batches among processes, and each process plays "
                    "tasks of its own here: some would never be played. Leave it out."
                )
        if self.enable_jit_checkpoint:
            raise ValueError(
                "`enable_jit_checkpoint=True` saves in the middle of a step, from which a run does not resume as it "
                "was. Leave it out: SIGTERM and Ctrl-C always save a checkpoint, at the end of a step."
            )
        if self.auto_find_batch_size:
            raise ValueError(
                "`auto_find_batch_size=True` lowers a batch size that does not decide how much memory a step takes "
                "here. Leave it out, and set `max_tokens_per_batch`."
            )

    def _check_what_is_trained(self) -> None:
        """Check the losses together."""
        if not (self.critic_loss_coef or self.policy_loss_coef):
            raise ValueError(
                "`critic_loss_coef=0` with `policy_loss_coef=0` trains neither the critic nor the policy. Raise one."
            )
        if self.is_in_hindsight and self.num_futures > 1:
            raise ValueError(
                f"`critic_loss_coef=0` refines actions by what followed, which has no verdict with "
                f"`num_futures={self.num_futures}`. Set it to 1."
            )

    def set_checkpointing_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Set how activations are recomputed, by both names."""
        self.gradient_checkpointing_kwargs = kwargs
        if "activation_checkpointing_kwargs" in vars(self):  # the name in transformers 5.24
            self.activation_checkpointing_kwargs = kwargs

    def set_unused_parameters(self) -> None:
        """Let DDP look for weights without gradients, as those of a multimodal model that sees text alone."""
        reentrant = (self.gradient_checkpointing_kwargs or {}).get("use_reentrant")  # which cannot have that
        if self.ddp_find_unused_parameters is None and not reentrant:
            self.ddp_find_unused_parameters = True

    def set_single_turn(self) -> None:
        """Let an episode be one answer. Options that the user left open follow."""
        self.max_turns, self.single_step = 1, self.num_futures == 1
        self._fill_in()

    @property
    def filled_in(self) -> set[str]:
        """Names of the options that the user left open, and for which the configuration set a value."""
        return {name for name, value in self._filled.items() if vars(self)[name] == value}

    def _fill_in(self) -> None:
        """Set options that the user left open, anew if others have changed since, and check those that are set."""
        for name in self.filled_in:
            setattr(self, name, None)
        left = [name for name in _LEFT_OPEN if vars(self)[name] is None]
        self._size_iterations()
        if self.async_rollouts and not (self.use_vllm and self.vllm_mode == "server"):
            raise ValueError(
                "`async_rollouts=True` plays with the engine of a vLLM server while the model trains, but generation "
                f"is set to `use_vllm={self.use_vllm}` and `vllm_mode={self.vllm_mode!r}`. Start a server, and set "
                "`use_vllm=True` and `vllm_mode='server'`."
            )
        self._filled = {name: vars(self)[name] for name in left}

    def _size_iterations(self) -> None:
        """Set the numbers of samples and episodes of an iteration that are `None`, and check those that are not."""
        batch_size, samples_per_episode = self.global_batch_size, SAMPLES_PER_STEP * self.max_turns
        if self.samples_per_iteration is None:
            of_episodes = samples_per_episode * (self.episodes_per_iteration or self.world_size)
            least = max(of_episodes, BATCHES_PER_ITERATION * batch_size)
            self.samples_per_iteration = math.ceil(least / batch_size) * batch_size
            if self.samples_per_iteration > MAX_SAMPLES:
                raise ValueError(
                    f"`max_turns={self.max_turns}`, `episodes_per_iteration={self.episodes_per_iteration}` and a "
                    f"global batch size of {batch_size} make iterations of {self.samples_per_iteration:,} samples, "
                    f"and {MAX_SAMPLES:,} is the most. Lower one of them, or set `samples_per_iteration`."
                )
        if self.samples_per_iteration % batch_size:
            raise ValueError(
                f"`samples_per_iteration` ({self.samples_per_iteration}) must be divisible by the global batch size "
                f"({batch_size} = `per_device_train_batch_size` {self.per_device_train_batch_size} * "
                f"`gradient_accumulation_steps` {self.gradient_accumulation_steps} * {self.world_size} processes)."
            )
        if self.episodes_per_iteration is None:
            of_process = self.samples_per_iteration // (samples_per_episode * self.world_size)
            self.episodes_per_iteration = max(1, of_process) * self.world_size
        if self.episodes_per_iteration % self.world_size:
            raise ValueError(
                f"`episodes_per_iteration` ({self.episodes_per_iteration}) must be divisible by the number of "
                f"processes ({self.world_size})."
            )

    def to_dict(self) -> dict[str, Any]:
        """Write the options as experiment trackers get them: without secrets."""
        return hide_secrets(super().to_dict())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={v!r}' for name, v in hide_secrets(asdict(self)).items())})"

    __str__ = __repr__

    # `training_args.bin`, which is uploaded with the model, is a pickle of the options.

    def __getstate__(self) -> dict[str, Any]:
        return hide_secrets(vars(self))

    def __copy__(self) -> "NLACConfig":
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "NLACConfig":
        copied = object.__new__(type(self))
        vars(copied).update(deepcopy(vars(self), memo))
        return copied

    @property
    def n_gpu(self) -> int:
        """Number of GPUs of this process: at most one. Every further one has a process of its own."""
        return min(super().n_gpu, 1)

    @property
    def num_idle_gpus(self) -> int:
        """Number of GPUs that this process sees and leaves alone."""
        return super().n_gpu - self.n_gpu

    @property
    def global_batch_size(self) -> int:
        """Number of transitions of an optimizer step, over all processes."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size

    @property
    def distills(self) -> bool:
        """Whether the policy learns the refinement policy's distribution."""
        return self.policy_loss_type == "distill"

    @property
    def is_in_hindsight(self) -> bool:
        """Whether what followed an action takes the place of a learned critic."""
        return self.bootstrap == "monte_carlo" and not self.critic_loss_coef

    @property
    def has_teacher(self) -> bool:
        """Whether the policy loss reads a distribution of the initial weights, one more pass over its examples."""
        return self.policy_loss_coef > 0 and (self.distills or self.policy_kl_coef > 0)

    def num_samples(self, num_stored: int) -> int:
        """
        Return how many samples a process draws in an iteration from `num_stored` transitions: its share of
        `samples_per_iteration`. Where that was left open, not more of each transition than of each step later on.
        """
        number = max(1, self.samples_per_iteration // self.world_size)
        is_open = "samples_per_iteration" in self.filled_in
        return min(number, SAMPLES_PER_STEP * num_stored) if is_open else number

    @property
    def draws_per_iteration(self) -> int:
        """Number of samples that an iteration trains on, over all processes, each time counted."""
        return self.samples_per_iteration * self.num_updates_per_generation

    @property
    def updates_per_iteration(self) -> int:
        """Number of optimizer steps of one iteration."""
        return self.steps_per_iteration // self.gradient_accumulation_steps

    def target_age(self, num_steps: int) -> int:
        """Number of iterations for which a Bellman target is used in a run of `num_steps` optimizer steps."""
        most = min(8, max(1, num_steps // self.updates_per_iteration // self.max_turns))
        return most if self.target_max_age is None else self.target_max_age

    @property
    def steps_per_iteration(self) -> int:
        """Number of micro-batches that each process trains on in one iteration."""
        num_micro_batches = self.samples_per_iteration // (self.per_device_train_batch_size * self.world_size)
        return num_micro_batches * self.num_updates_per_generation
