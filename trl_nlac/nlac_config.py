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

"""Every knob of the trainer, documented and checked."""

from dataclasses import dataclass, field
from typing import Any

from trl.trainer.base_config import _BaseConfig

from .generation import Sampling
from .prompts import ACTION_PARSERS


@dataclass
class NLACConfig(_BaseConfig):
    r"""
    Configuration class for the [`NLACTrainer`].

    This class includes only the parameters that are specific to NLAC training. For a full list of training arguments,
    please refer to the [`~transformers.TrainingArguments`] documentation. Note that default values in this class may
    differ from those in [`~transformers.TrainingArguments`].

    Parameters:
        > Parameters that control the model

        model_init_kwargs (`str`, `dict[str, Any]`, *optional*):
            Keyword arguments for [`~transformers.AutoModelForCausalLM.from_pretrained`], used when the `model`
            argument of the [`NLACTrainer`] is provided as a string.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to allow loading models whose code lives on the Hub.
        disable_dropout (`bool`, *optional*, defaults to `False`):
            Whether to disable dropout in the model.
        chat_template_kwargs (`str`, `dict[str, Any]`, *optional*):
            Additional keyword arguments for the chat template.

        > Parameters that control the data

        shuffle_dataset (`bool`, *optional*, defaults to `True`):
            Whether to shuffle the tasks.

        > Parameters that control acting

        action_format (`str`, *optional*, defaults to `"react"`):
            How the policy writes an action: `"react"` (`Thought:` and `Action:`, the paper) or `"text"` (the whole
            answer is the action).
        max_turns (`int`, *optional*, defaults to `20`):
            Number of actions after which an episode is truncated.
        episodes_per_iteration (`int`, *optional*):
            Number of episodes played in each iteration of algorithm 1, over all processes. If `None`, one for each
            sequence of a micro-batch: `per_device_train_batch_size * num_processes`.
        learning_starts (`int`, *optional*, defaults to `0`):
            Number of transitions that each process collects before the first update.
        reward_weights (`list[float]`, *optional*):
            Weights of the reward functions. If `None`, 1 each.
        success_threshold (`float`, *optional*, defaults to `1.0`):
            Score from which an episode counts as a success.

        > Parameters that control generation

        max_prompt_length (`int` or `None`, *optional*, defaults to `8192`):
            Number of tokens of a state past which its episode is truncated. `None` for no limit.
        max_completion_length (`int`, *optional*, defaults to `512`):
            Maximum number of tokens of anything that the model says.
        temperature (`float`, *optional*, defaults to `1.0`):
            Sampling temperature of all roles; `0` is greedy.
        successor_temperature (`float`, *optional*):
            Temperature of bootstrapped futures. If `None`, `temperature`.
        backup_temperature (`float`, *optional*):
            Temperature of Bellman targets. If `None`, `temperature`.
        critique_temperature (`float`, *optional*):
            Temperature of critiques. If `None`, `temperature`.
        refine_temperature (`float`, *optional*):
            Temperature of refined actions. If `None`, `temperature`.
        top_p (`float`, *optional*, defaults to `1.0`):
            Cumulative probability of the tokens to consider. `1.0` considers all.
        top_k (`int`, *optional*, defaults to `0`):
            Number of the most likely tokens to consider. `0` considers all.
        min_p (`float`, *optional*):
            Smallest probability of a token, relative to the most likely one.
        repetition_penalty (`float`, *optional*, defaults to `1.0`):
            Penalty for tokens that occurred already. `1.0` is none.
        generation_kwargs (`str`, `dict[str, Any]`, *optional*):
            Additional keyword arguments of [`~transformers.GenerationConfig`].
        max_generation_batch_size (`int`, *optional*, defaults to `128`):
            Largest number of sequences that are generated in one call on one device.
        max_format_retries (`int`, *optional*, defaults to `1`):
            How often a target, critique or action that breaks its format is sampled again before it is dropped.

        > Parameters that control the replay buffer

        replay_buffer_size (`int`, *optional*, defaults to `100000`):
            Number of transitions that each process keeps.
        samples_per_iteration (`int`, *optional*):
            Number of transitions trained on in each iteration, over all processes. Must be divisible by the global
            batch size. If `None`, the global batch size: one optimizer step per iteration.
        priority_exponent (`float`, *optional*, defaults to `0.1`):
            Alpha of prioritized replay. `0` samples uniformly.
        importance_sampling_exponent (`float`, *optional*, defaults to `0.0`):
            Beta of the importance weights. `0` is none, as in the paper.

        > Parameters that control the training

        learning_rate (`float`, *optional*, defaults to `5e-6`):
            Initial learning rate for the [`~torch.optim.AdamW`] optimizer (paper, appendix A.4).
        target_update_rate (`float`, *optional*, defaults to `0.005`):
            Tau: weight of the trained weights in each update of the target weights.
        target_sync_steps (`int`, *optional*, defaults to `1`):
            Number of optimizer steps between two updates of the target weights.
        critic_loss_coef (`float`, *optional*, defaults to `1.0`):
            Coefficient of the critic loss, lambda_1 in algorithm 1.
        policy_loss_coef (`float`, *optional*, defaults to `1.0`):
            Coefficient of the policy loss, lambda_2 in algorithm 1.
        bootstrap (`str`, *optional*, defaults to `"implicit"`):
            Where the bootstrapped future of a Bellman target comes from: `"implicit"` asks the successor model for the
            next action and its future in one (the paper's implementation), `"explicit"` samples the next action from the
            policy and its future from the critic, which are both trained (the paper's equation 1), for one more generation.
        num_refinements (`int`, *optional*, defaults to `1`):
            Rounds m of critique and refinement.
        rehearsal_ratio (`float`, *optional*, defaults to `0.0`):
            Number of samples of the `rehearsal_dataset` in each batch, relative to the transitions. `0` is the paper.
        health_warning_ratio (`float`, *optional*, defaults to `0.7`):
            A warning names a role once its health metric falls below this share of the best that it has been.

        > Parameters that control evaluation

        num_eval_episodes (`int`, *optional*, defaults to `1`):
            Number of episodes of each task of the `eval_dataset`.
        eval_temperature (`float`, *optional*):
            Temperature of the policy in evaluation. If `None`, `temperature`.
        num_oracle_probes (`int`, *optional*, defaults to `64`):
            Number of critiques compared with the truth in each evaluation, where the environment has an oracle.
    """

    _VALID_DICT_FIELDS = _BaseConfig._VALID_DICT_FIELDS + [
        "model_init_kwargs",
        "chat_template_kwargs",
        "generation_kwargs",
    ]

    # Overridden defaults
    learning_rate: float = field(
        default=5e-6, metadata={"help": "The initial learning rate for AdamW (paper, appendix A.4)."}
    )
    remove_unused_columns: bool | None = field(
        default=False, metadata={"help": "Columns of the dataset are the task's keywords and are all kept."}
    )

    # Parameters that control the model
    model_init_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Keyword arguments for `from_pretrained` when the `model` argument is a string."},
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Whether to allow loading models whose code lives on the Hub."}
    )
    disable_dropout: bool = field(default=False, metadata={"help": "Whether to disable dropout in the model."})
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Additional keyword arguments for the chat template."}
    )

    # Parameters that control the data
    shuffle_dataset: bool = field(default=True, metadata={"help": "Whether to shuffle the tasks."})

    # Parameters that control acting
    action_format: str = field(
        default="react",
        metadata={"help": "How the policy writes an action.", "choices": sorted(ACTION_PARSERS)},
    )
    max_turns: int = field(default=20, metadata={"help": "Number of actions after which an episode is truncated."})
    episodes_per_iteration: int | None = field(
        default=None,
        metadata={
            "help": "Number of episodes played in each iteration, over all processes. If None, "
            "`per_device_train_batch_size * num_processes`."
        },
    )
    learning_starts: int = field(
        default=0, metadata={"help": "Number of transitions that each process collects before the first update."}
    )
    reward_weights: list[float] | None = field(
        default=None, metadata={"help": "Weights of the reward functions. If None, 1 each."}
    )
    success_threshold: float = field(
        default=1.0, metadata={"help": "Score from which an episode counts as a success."}
    )

    # Parameters that control generation
    max_prompt_length: int | None = field(
        default=8192, metadata={"help": "Number of tokens of a state past which its episode is truncated."}
    )
    max_completion_length: int = field(
        default=512, metadata={"help": "Maximum number of tokens of anything that the model says."}
    )
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature of all roles; 0 is greedy."})
    successor_temperature: float | None = field(
        default=None, metadata={"help": "Temperature of bootstrapped futures. If None, `temperature`."}
    )
    backup_temperature: float | None = field(
        default=None, metadata={"help": "Temperature of Bellman targets. If None, `temperature`."}
    )
    critique_temperature: float | None = field(
        default=None, metadata={"help": "Temperature of critiques. If None, `temperature`."}
    )
    refine_temperature: float | None = field(
        default=None, metadata={"help": "Temperature of refined actions. If None, `temperature`."}
    )
    top_p: float = field(
        default=1.0, metadata={"help": "Cumulative probability of the tokens to consider. 1.0 considers all."}
    )
    top_k: int = field(default=0, metadata={"help": "Number of the most likely tokens to consider. 0 considers all."})
    min_p: float | None = field(
        default=None, metadata={"help": "Smallest probability of a token, relative to the most likely one."}
    )
    repetition_penalty: float = field(
        default=1.0, metadata={"help": "Penalty for tokens that occurred already. 1.0 is none."}
    )
    generation_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Additional keyword arguments of `GenerationConfig`."}
    )
    max_generation_batch_size: int = field(
        default=128, metadata={"help": "Largest number of sequences that are generated in one call on one device."}
    )
    max_format_retries: int = field(
        default=1,
        metadata={"help": "How often an answer that breaks its format is sampled again before it is dropped."},
    )

    # Parameters that control the replay buffer
    replay_buffer_size: int = field(
        default=100_000, metadata={"help": "Number of transitions that each process keeps."}
    )
    samples_per_iteration: int | None = field(
        default=None,
        metadata={
            "help": "Number of transitions trained on in each iteration, over all processes. Must be divisible by the "
            "global batch size. If None, the global batch size."
        },
    )
    priority_exponent: float = field(
        default=0.1, metadata={"help": "Alpha of prioritized replay. 0 samples uniformly."}
    )
    importance_sampling_exponent: float = field(
        default=0.0, metadata={"help": "Beta of the importance weights. 0 is none, as in the paper."}
    )

    # Parameters that control the training
    target_update_rate: float = field(
        default=0.005,
        metadata={"help": "Tau: weight of the trained weights in each update of the target weights."},
    )
    target_sync_steps: int = field(
        default=1, metadata={"help": "Number of optimizer steps between two updates of the target weights."}
    )
    critic_loss_coef: float = field(default=1.0, metadata={"help": "Coefficient of the critic loss."})
    policy_loss_coef: float = field(default=1.0, metadata={"help": "Coefficient of the policy loss."})
    bootstrap: str = field(
        default="implicit",
        metadata={
            "help": "Where the bootstrapped future of a Bellman target comes from.",
            "choices": ["implicit", "explicit"],
        },
    )
    num_refinements: int = field(default=1, metadata={"help": "Rounds of critique and refinement."})
    rehearsal_ratio: float = field(
        default=0.0,
        metadata={"help": "Number of rehearsal samples in each batch, relative to the transitions. 0 is the paper."},
    )
    health_warning_ratio: float = field(
        default=0.7,
        metadata={"help": "A warning names a role once its health metric falls below this share of its best."},
    )

    # Parameters that control evaluation
    num_eval_episodes: int = field(
        default=1, metadata={"help": "Number of episodes of each task of the `eval_dataset`."}
    )
    eval_temperature: float | None = field(
        default=None, metadata={"help": "Temperature of the policy in evaluation. If None, `temperature`."}
    )
    num_oracle_probes: int = field(
        default=64,
        metadata={"help": "Number of critiques compared with the truth in each evaluation, where there is an oracle."},
    )

    def __post_init__(self):
        super().__post_init__()
        if self.action_format not in ACTION_PARSERS:
            raise ValueError(f"`action_format` must be one of {sorted(ACTION_PARSERS)}, got {self.action_format!r}.")
        if self.bootstrap not in ("implicit", "explicit"):
            raise ValueError(f"`bootstrap` must be 'implicit' or 'explicit', got {self.bootstrap!r}.")
        for name in (
            "max_turns",
            "max_completion_length",
            "max_generation_batch_size",
            "replay_buffer_size",
            "target_sync_steps",
            "num_refinements",
            "num_eval_episodes",
        ):
            self._check(name, self.__dict__[name] >= 1, "at least 1")
        for name in (
            "learning_starts",
            "temperature",
            "max_format_retries",
            "importance_sampling_exponent",
            "critic_loss_coef",
            "policy_loss_coef",
            "rehearsal_ratio",
            "num_oracle_probes",
        ):
            self._check(name, self.__dict__[name] >= 0, "not negative")
        for name in ("priority_exponent", "health_warning_ratio"):
            self._check(name, 0 <= self.__dict__[name] <= 1, "between 0 and 1")
        self._check("target_update_rate", 0 < self.target_update_rate <= 1, "above 0 and at most 1")
        self._check("learning_starts", self.learning_starts <= self.replay_buffer_size, "at most `replay_buffer_size`")

        batch_size = self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size
        if self.samples_per_iteration is None:
            self.samples_per_iteration = batch_size
        if self.samples_per_iteration < 1 or self.samples_per_iteration % batch_size:
            raise ValueError(
                f"`samples_per_iteration` ({self.samples_per_iteration}) must be divisible by the global batch size "
                f"({batch_size} = `per_device_train_batch_size` {self.per_device_train_batch_size} * "
                f"`gradient_accumulation_steps` {self.gradient_accumulation_steps} * {self.world_size} processes)."
            )
        if self.episodes_per_iteration is None:
            self.episodes_per_iteration = self.per_device_train_batch_size * self.world_size
        if self.episodes_per_iteration < 1 or self.episodes_per_iteration % self.world_size:
            raise ValueError(
                f"`episodes_per_iteration` ({self.episodes_per_iteration}) must be divisible by the number of "
                f"processes ({self.world_size})."
            )

    def _check(self, name: str, valid: bool, requirement: str) -> None:
        if not valid:
            raise ValueError(f"`{name}` must be {requirement}, got {self.__dict__[name]!r}.")

    @property
    def steps_per_iteration(self) -> int:
        """Number of micro-batches that each process trains on in one iteration."""
        return self.samples_per_iteration // (self.per_device_train_batch_size * self.world_size)

    @property
    def samplings(self) -> dict[str, Sampling]:
        """How each role samples."""
        temperatures = {
            "policy": self.temperature,
            "successor": self.successor_temperature,
            "backup": self.backup_temperature,
            "critique": self.critique_temperature,
            "refine": self.refine_temperature,
            "evaluation": self.eval_temperature,
        }
        return {
            role: Sampling(
                max_tokens=self.max_completion_length,
                temperature=self.temperature if temperature is None else temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
                generation_kwargs=self.generation_kwargs or {},
            )
            for role, temperature in temperatures.items()
        }
