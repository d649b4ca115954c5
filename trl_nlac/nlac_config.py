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

from .generation.base import Sampling
from .method.role_sampling import role_samplings
from .options.checks import check_options
from .options.records import RecordOptions
from .options.vllm import VLLMOptions
from .prompts import ACTION_PARSERS


@dataclass
class NLACConfig(RecordOptions, VLLMOptions):
    r"""
    Configuration class for the [`NLACTrainer`].

    This class includes only the parameters that are specific to NLAC training. For a full list of training arguments,
    please refer to the [`~transformers.TrainingArguments`] documentation. Note that default values in this class may
    differ from those in [`~transformers.TrainingArguments`]. Generation with vLLM has options of its own, see
    [`~options.vllm.VLLMOptions`], and so has what a run writes down, see [`~options.records.RecordOptions`].

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
        remove_unused_columns (`bool`, *optional*, defaults to `False`):
            Columns of the dataset are the task's keywords and are all kept.

        > Parameters that control acting

        action_format (`str`, *optional*, defaults to `"react"`):
            How the policy writes an action: `"react"` (`Thought:` and `Action:`, the paper), `"tool_call"` (calls of
            the environment's tools, as the chat template writes them) or `"text"` (the whole answer is the action).
        single_step (`bool`, *optional*, defaults to `False`):
            Whether a task is one action, as in mathematics. The critic then judges its correctness and foresees nothing.
            Needs `max_turns=1`.
        max_turns (`int`, *optional*, defaults to `20`):
            Number of actions after which an episode is truncated.
        episodes_per_iteration (`int`, *optional*):
            Number of episodes played in each iteration of algorithm 1, over all processes. If `None`, one for each
            sequence of a micro-batch: `per_device_train_batch_size * num_processes`.
        learning_starts (`int`, *optional*, defaults to `0`):
            Number of transitions that each process collects before the first update.
        reward_weights (`list[float]`, *optional*):
            Weights of the reward functions. If `None`, 1 each.
        max_concurrent_environments (`int`, *optional*):
            Number of environment instances that live at the same time on each process. If `None`, one for each episode.
        environment_timeout (`float`, *optional*, defaults to `300.0`):
            Seconds after which `reset`, `step` or the final reward of an environment counts as hanging: the episode is
            truncated, the instance thrown away. If `None`, never.
        max_environment_failure_rate (`float`, *optional*, defaults to `0.5`):
            Training stops, with a checkpoint, once the environment of more than this share of the last episodes failed.
        environment_failure_window (`int`, *optional*, defaults to `100`):
            Number of last episodes, over all processes, in which failures are counted.
        success_threshold (`float`, *optional*, defaults to `1.0`):
            Score from which an episode counts as a success.

        > Parameters that control generation

        max_prompt_length (`int` or `None`, *optional*, defaults to `8192`):
            Maximum number of tokens of a state. From a longer history the middle is cut: the system message, the task and
            the newest turns stay, and a mark in words stands for the rest. The prompts of critic, backup and refinement
            add an action, an observation and what the roles say. `None` for no limit.
        max_completion_length (`int`, *optional*, defaults to `512`):
            Maximum number of tokens of anything that the model says. What is longer is counted and not trained on.
        max_action_length (`int`, *optional*):
            The same for actions and refined actions. If `None`, `max_completion_length`.
        max_future_length (`int`, *optional*):
            The same for foreseen futures. If `None`, `max_completion_length`.
        max_critique_length (`int`, *optional*):
            The same for critiques and Bellman targets. If `None`, `max_completion_length`.
        temperature (`float`, *optional*, defaults to `1.0`):
            Sampling temperature of all roles; `0` is greedy.
        successor_temperature (`float`, *optional*):
            Temperature of foreseen futures. If `None`, `temperature`.
        backup_temperature (`float`, *optional*):
            Temperature of Bellman targets. If `None`, `temperature`.
        critique_temperature (`float`, *optional*):
            Temperature of critiques. If `None`, `temperature`.
        refine_temperature (`float`, *optional*):
            Temperature of refined actions. If `None`, `temperature`.
        top_p (`float`, *optional*, defaults to `1.0`):
            Cumulative probability of the tokens to consider. `1.0` considers all.
        successor_top_p (`float`, *optional*):
            The same for foreseen futures. If `None`, `top_p`.
        backup_top_p (`float`, *optional*):
            The same for Bellman targets. If `None`, `top_p`.
        critique_top_p (`float`, *optional*):
            The same for critiques. If `None`, `top_p`.
        refine_top_p (`float`, *optional*):
            The same for refined actions. If `None`, `top_p`.
        top_k (`int`, *optional*, defaults to `0`):
            Number of the most likely tokens to consider. `0` considers all.
        min_p (`float`, *optional*):
            Smallest probability of a token, relative to the most likely one.
        successor_min_p (`float`, *optional*):
            The same for foreseen futures: `0.0` considers all tokens. If `None`, `min_p`.
        backup_min_p (`float`, *optional*):
            The same for Bellman targets. If `None`, `min_p`.
        critique_min_p (`float`, *optional*):
            The same for critiques. If `None`, `min_p`.
        refine_min_p (`float`, *optional*):
            The same for refined actions, which may so explore what the policy leaves out. If `None`, `min_p`.
        repetition_penalty (`float`, *optional*, defaults to `1.0`):
            Penalty for tokens that occurred already. `1.0` is none.
        generation_kwargs (`str`, `dict[str, Any]`, *optional*):
            Additional keyword arguments of [`~transformers.GenerationConfig`], or of vLLM's `SamplingParams`.
        max_generation_batch_size (`int`, *optional*, defaults to `128`):
            Largest number of sequences that are generated in one call on one device.
        ds3_gather_for_generation (`bool`, *optional*, defaults to `True`):
            Under DeepSpeed ZeRO-3, whether each process gathers the whole model to generate with transformers. Otherwise
            every layer is gathered for every token, which is slow and needs little memory; FSDP2 always generates so.
        max_format_retries (`int`, *optional*, defaults to `1`):
            How often a target, critique or action that breaks its format is sampled again before it is dropped.

        > Parameters that control the replay buffer

        replay_buffer_size (`int`, *optional*, defaults to `100000`):
            Number of transitions that each process keeps.
        replay_buffer_memory (`float`, *optional*):
            Memory, in GiB, that each process gives to the stored episodes, which are compressed. Beyond it the oldest lie in
            files in `output_dir` that vanish with the process, and are read back when they are sampled. If `None`, all are
            kept in memory.
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
        target_weights_offload (`bool`, *optional*, defaults to `False`):
            Whether the target weights, 4 bytes for each trained parameter of the process's shard, are kept in the memory of
            the CPU.
        critic_loss_coef (`float`, *optional*, defaults to `1.0`):
            Coefficient of the critic loss, lambda_1 in algorithm 1. With 0 the critic is not trained, and nothing sets
            priorities.
        critic_loss_type (`str`, *optional*, defaults to `"sampled"`):
            `"sampled"` is the negative log-likelihood of the sampled target, the cross-entropy part of equation 5 (the
            paper). `"distill"` is the Kullback-Leibler divergence from the backup's whole distribution at each token of
            the target: an estimate of less variance of the same objective, for one more forward pass with the target
            weights. Either is averaged over the tokens of a target.
        policy_loss_coef (`float`, *optional*, defaults to `1.0`):
            Coefficient of the policy loss, lambda_2 in algorithm 1.
        num_futures (`int`, *optional*, defaults to `1`):
            Number k of futures that a critique weighs (equation 3). With 1, future and verdict are one answer, and the
            critic is trained on both; with more, the critic is trained on the future alone and the verdict on all of
            them is asked for separately.
        reasoning (`bool`, *optional*):
            Whether the chain of thought of a Bellman target or a refined action is rewritten before it is trained on, so
            that it does not know what the prompt in training does not show (appendix A.2). If `None`, whenever the chat
            template marks a chain of thought and the answer has one.
        bootstrap (`str`, *optional*, defaults to `"implicit"`):
            Where the bootstrapped future of a Bellman target comes from: `"implicit"` asks the successor model for the
            next action and its future in one (the paper's implementation), `"explicit"` samples the next action from the
            policy and its future from the critic, which are both trained (the paper's equation 1), for one more generation;
            `"monte_carlo"` takes what really followed in the episode, by the policy that acted then: no bootstrap, but for
            episodes that were cut.
        num_refinements (`int`, *optional*, defaults to `1`):
            Rounds m of critique and refinement.
        refinement_source (`str`, *optional*, defaults to `"policy"`):
            Which action is refined: `"policy"`, a fresh one after its critique (the paper); `"replay"`, the stored one
            after its Bellman target, which has seen the observed answer, for two generations less; or `"mixed"`.
        replay_refinement_fraction (`float`, *optional*, defaults to `0.5`):
            With `refinement_source="mixed"`, the share of transitions whose stored action is refined.
        max_nonfinite_batches (`int`, *optional*, defaults to `10`):
            Number of micro-batches in a row with NaN or infinite losses after which training stops, with a checkpoint. Before,
            the examples are left out, counted and named.
        rehearsal_ratio (`float`, *optional*, defaults to `0.0`):
            Number of samples of the `rehearsal_dataset` in each batch, relative to the transitions. `0` is the paper.
        health_warning_ratio (`float`, *optional*, defaults to `0.7`):
            A warning names a role once its health metric falls below this share of the best that it has been; another
            tells when success does.

        > Parameters that control evaluation

        num_eval_episodes (`int`, *optional*, defaults to `1`):
            Number of episodes of each task of the `eval_dataset`.
        eval_temperature (`float`, *optional*):
            Temperature of the policy in evaluation. If `None`, `temperature`.
        num_eval_critiques (`int`, *optional*, defaults to `64`):
            Number of actions of each evaluation, on each process, that the critic judges, to compare its verdict scores
            with the outcomes.
        num_oracle_probes (`int`, *optional*, defaults to `64`):
            Number of critiques compared with the truth in each evaluation, where the environment has an oracle.
    """

    _VALID_DICT_FIELDS = VLLMOptions._VALID_DICT_FIELDS + [
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
    single_step: bool = field(
        default=False, metadata={"help": "Whether a task is one action, of which the critic judges the correctness."}
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
    max_concurrent_environments: int | None = field(
        default=None,
        metadata={"help": "Number of environment instances that live at the same time on each process."},
    )
    environment_timeout: float | None = field(
        default=300.0, metadata={"help": "Seconds after which a call of an environment counts as hanging."}
    )
    max_environment_failure_rate: float = field(
        default=0.5,
        metadata={"help": "Training stops once the environment of more than this share of the last episodes failed."},
    )
    environment_failure_window: int = field(
        default=100, metadata={"help": "Number of last episodes, over all processes, in which failures are counted."}
    )
    success_threshold: float = field(
        default=1.0, metadata={"help": "Score from which an episode counts as a success."}
    )

    # Parameters that control generation
    max_prompt_length: int | None = field(
        default=8192, metadata={"help": "Maximum number of tokens of a state; a longer history is cut in the middle."}
    )
    max_completion_length: int = field(
        default=512, metadata={"help": "Maximum number of tokens of anything that the model says."}
    )
    max_action_length: int | None = field(
        default=None, metadata={"help": "Maximum number of tokens of an action. If None, `max_completion_length`."}
    )
    max_future_length: int | None = field(
        default=None, metadata={"help": "Maximum number of tokens of a future. If None, `max_completion_length`."}
    )
    max_critique_length: int | None = field(
        default=None,
        metadata={"help": "Maximum number of tokens of critiques and targets. If None, `max_completion_length`."},
    )
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature of all roles; 0 is greedy."})
    successor_temperature: float | None = field(
        default=None, metadata={"help": "Temperature of foreseen futures. If None, `temperature`."}
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
    successor_top_p: float | None = field(
        default=None, metadata={"help": "The same for foreseen futures. If None, `top_p`."}
    )
    backup_top_p: float | None = field(
        default=None, metadata={"help": "The same for Bellman targets. If None, `top_p`."}
    )
    critique_top_p: float | None = field(default=None, metadata={"help": "The same for critiques. If None, `top_p`."})
    refine_top_p: float | None = field(
        default=None, metadata={"help": "The same for refined actions. If None, `top_p`."}
    )
    top_k: int = field(default=0, metadata={"help": "Number of the most likely tokens to consider. 0 considers all."})
    min_p: float | None = field(
        default=None, metadata={"help": "Smallest probability of a token, relative to the most likely one."}
    )
    successor_min_p: float | None = field(
        default=None, metadata={"help": "The same for foreseen futures. If None, `min_p`."}
    )
    backup_min_p: float | None = field(
        default=None, metadata={"help": "The same for Bellman targets. If None, `min_p`."}
    )
    critique_min_p: float | None = field(default=None, metadata={"help": "The same for critiques. If None, `min_p`."})
    refine_min_p: float | None = field(
        default=None, metadata={"help": "The same for refined actions. If None, `min_p`."}
    )
    repetition_penalty: float = field(
        default=1.0, metadata={"help": "Penalty for tokens that occurred already. 1.0 is none."}
    )
    generation_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Additional keyword arguments of `GenerationConfig`, or of vLLM's `SamplingParams`."},
    )
    max_generation_batch_size: int = field(
        default=128, metadata={"help": "Largest number of sequences that are generated in one call on one device."}
    )
    ds3_gather_for_generation: bool = field(
        default=True,
        metadata={"help": "Under ZeRO-3, whether each process gathers the whole model to generate with transformers."},
    )
    max_format_retries: int = field(
        default=1,
        metadata={"help": "How often an answer that breaks its format is sampled again before it is dropped."},
    )

    # Parameters that control the replay buffer
    replay_buffer_size: int = field(
        default=100_000, metadata={"help": "Number of transitions that each process keeps."}
    )
    replay_buffer_memory: float | None = field(
        default=None,
        metadata={
            "help": "Memory, in GiB, that each process gives to the stored episodes. Beyond it the oldest lie in files "
            "in `output_dir`. If None, all are kept in memory."
        },
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
    target_weights_offload: bool = field(
        default=False, metadata={"help": "Whether the target weights are kept in the memory of the CPU."}
    )
    critic_loss_coef: float = field(default=1.0, metadata={"help": "Coefficient of the critic loss."})
    critic_loss_type: str = field(
        default="sampled",
        metadata={
            "help": "Whether the critic learns the sampled target or the backup's distribution along it.",
            "choices": ["sampled", "distill"],
        },
    )
    policy_loss_coef: float = field(default=1.0, metadata={"help": "Coefficient of the policy loss."})
    num_futures: int = field(default=1, metadata={"help": "Number of futures that a critique weighs."})
    reasoning: bool | None = field(
        default=None,
        metadata={
            "help": "Whether chains of thought are rewritten before they are trained on. If None, whenever there are any."
        },
    )
    bootstrap: str = field(
        default="implicit",
        metadata={
            "help": "Where the bootstrapped future of a Bellman target comes from.",
            "choices": ["implicit", "explicit", "monte_carlo"],
        },
    )
    num_refinements: int = field(default=1, metadata={"help": "Rounds of critique and refinement."})
    refinement_source: str = field(
        default="policy",
        metadata={
            "help": "Which action is refined: a fresh one, the stored one, or either.",
            "choices": ["policy", "replay", "mixed"],
        },
    )
    replay_refinement_fraction: float = field(
        default=0.5, metadata={"help": "With `refinement_source='mixed'`, the share of stored actions."}
    )
    max_nonfinite_batches: int = field(
        default=10,
        metadata={"help": "Number of micro-batches in a row with NaN or infinite losses after which training stops."},
    )
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
    num_eval_critiques: int = field(
        default=64, metadata={"help": "Number of actions of each evaluation that the critic judges."}
    )
    num_oracle_probes: int = field(
        default=64,
        metadata={"help": "Number of critiques compared with the truth in each evaluation, where there is an oracle."},
    )

    def __post_init__(self):
        super().__post_init__()
        check_options(self)
        batch_size = self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size
        if self.samples_per_iteration is None:
            self.samples_per_iteration = batch_size
        if self.samples_per_iteration < 1 or self.samples_per_iteration % batch_size:
            raise ValueError(
                f"`samples_per_iteration` ({self.samples_per_iteration}) must be positive and divisible by the global batch size "
                f"({batch_size} = `per_device_train_batch_size` {self.per_device_train_batch_size} * "
                f"`gradient_accumulation_steps` {self.gradient_accumulation_steps} * {self.world_size} processes)."
            )
        if self.episodes_per_iteration is None:
            self.episodes_per_iteration = self.per_device_train_batch_size * self.world_size
        if self.episodes_per_iteration < 1 or self.episodes_per_iteration % self.world_size:
            raise ValueError(
                f"`episodes_per_iteration` ({self.episodes_per_iteration}) must be positive and divisible by the number of "
                f"processes ({self.world_size})."
            )

    @property
    def steps_per_iteration(self) -> int:
        """Number of micro-batches that each process trains on in one iteration."""
        return self.samples_per_iteration // (self.per_device_train_batch_size * self.world_size)

    @property
    def samplings(self) -> dict[str, Sampling]:
        """How each role samples."""
        return role_samplings(self)
