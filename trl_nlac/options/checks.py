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

"""What values the options of [`NLACConfig`] may have."""

from dataclasses import fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin


def check_options(args: Any) -> None:
    """
    Check every option that has a range of its own, and those that exclude each other.

    Args:
        args ([`NLACConfig`]):
            The options.

    Raises:
        ValueError: If one is out of range; the message names it.
    """

    def check(name: str, valid: bool, requirement: str) -> None:
        if not valid:
            raise ValueError(f"`{name}` must be {requirement}, got {args.__dict__[name]!r}.")

    for option in fields(args):
        is_union = get_origin(option.type) in (Union, UnionType)
        kinds = set(get_args(option.type)) if is_union else {option.type}
        if kinds <= {int, float, NoneType}:
            value, is_whole = args.__dict__[option.name], float not in kinds
            takes_none = NoneType in kinds or option.default is None
            valid = value is None and takes_none or isinstance(value, Integral if is_whole else Real)
            check(option.name, valid, f"a {'whole ' if is_whole else ''}number{', or None' if takes_none else ''}")
    for name in (
        "action_format",
        "bootstrap",
        "critic_loss_type",
        "refinement_source",
        "vllm_mode",
        "vllm_model_impl",
    ):
        choices = args.__dataclass_fields__[name].metadata["choices"]
        check(name, args.__dict__[name] in choices, f"one of {choices}")
    for name in (
        "max_turns",
        "max_completion_length",
        "max_generation_batch_size",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "replay_buffer_size",
        "target_sync_steps",
        "num_futures",
        "num_refinements",
        "num_eval_episodes",
        "environment_failure_window",
        "max_nonfinite_batches",
        "vllm_tensor_parallel_size",
    ):
        check(name, args.__dict__[name] >= 1, "at least 1")
    for name in (
        "max_concurrent_environments",
        "max_prompt_length",
        "max_action_length",
        "max_future_length",
        "max_critique_length",
        "vllm_max_model_length",
        "audit_total_limit",
    ):
        check(name, args.__dict__[name] is None or args.__dict__[name] >= 1, "at least 1, or None")
    for name in ("top_p", "successor_top_p", "backup_top_p", "critique_top_p", "refine_top_p"):
        value = args.__dict__[name]
        check(name, value is None and name != "top_p" or value and 0 < value <= 1, "above 0 and at most 1")
    for name in ("min_p", "successor_min_p", "backup_min_p", "critique_min_p", "refine_min_p"):
        value = args.__dict__[name]
        check(name, value is None or 0 <= value <= 1, "from 0 to 1, or None")
    for name in ("successor", "backup", "critique", "refine", "eval"):
        value = args.__dict__[f"{name}_temperature"]
        check(f"{name}_temperature", value is None or value >= 0, "not negative, or None")
    for name in (
        "learning_starts",
        "temperature",
        "top_k",
        "max_format_retries",
        "importance_sampling_exponent",
        "critic_loss_coef",
        "policy_loss_coef",
        "rehearsal_ratio",
        "num_eval_critiques",
        "num_oracle_probes",
        "audit_samples",
    ):
        check(name, args.__dict__[name] >= 0, "not negative")
    number = args.num_completions_to_print
    check("num_completions_to_print", number is None or number >= 0, "not negative, or None")
    check("repetition_penalty", args.repetition_penalty > 0, "above 0")
    for name in ("environment_timeout", "replay_buffer_memory"):
        check(name, args.__dict__[name] is None or args.__dict__[name] > 0, "above 0, or None")
    for name in (
        "max_environment_failure_rate",
        "priority_exponent",
        "health_warning_ratio",
        "replay_refinement_fraction",
    ):
        check(name, 0 <= args.__dict__[name] <= 1, "between 0 and 1")
    share = args.vllm_gpu_memory_utilization
    check("vllm_server_timeout", args.vllm_server_timeout > 0, "above 0")
    check("vllm_gpu_memory_utilization", 0 < share <= 1, "above 0 and at most 1")
    check("target_update_rate", 0 < args.target_update_rate <= 1, "above 0 and at most 1")
    check("learning_starts", args.learning_starts <= args.replay_buffer_size, "at most `replay_buffer_size`")

    if not args.log_completions:
        check("log_completions_hub_repo", args.log_completions_hub_repo is None, "None without `log_completions=True`")
    if not args.use_vllm:
        regex = args.vllm_structured_outputs_regex
        check("vllm_structured_outputs_regex", regex is None, "None without `use_vllm=True`")
    if args.single_step and args.max_turns != 1:
        raise ValueError(f"`single_step=True` means tasks of one action: set `max_turns=1`, got {args.max_turns}.")
    if args.single_step and args.num_futures > 1:
        raise ValueError(f"`single_step=True` foresees nothing: leave `num_futures` at 1, got {args.num_futures}.")
    if args.num_futures > 1 and args.refinement_source != "policy":
        raise ValueError(
            f"`refinement_source={args.refinement_source!r}` refines by the verdict of a Bellman target, which has "
            f"none with `num_futures={args.num_futures}`. Use `refinement_source='policy'` or `num_futures=1`."
        )
