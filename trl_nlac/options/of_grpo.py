# SPDX-License-Identifier: Apache-2.0

"""Errors of unknown options: what they are meant to be, or, of TRL's `GRPOConfig`, are called here."""

from difflib import get_close_matches


_NO_GRADIENT = "has no place here: there is no policy gradient"
_GROUPS = {
    "num_generations log_unique_prompts": "has no place here: a task is played once, and every step is trained on "
    "many times",
    "num_generations_eval": "is `num_eval_episodes` here",
    "steps_per_generation generation_batch_size": "is `samples_per_iteration` and `episodes_per_iteration` here",
    "num_iterations": "is `num_updates_per_generation` here",
    "max_tool_calling_iterations": "is `max_turns` here, which counts answers of the model",
    "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps": "is `target_update_rate` here, of the weights that "
    "write targets",
    "beta": "is `policy_kl_coef` here, exact and not an estimate",
    "epsilon epsilon_high delta loss_type importance_sampling_level scale_rewards multi_objective_aggregation "
    "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg "
    "top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta "
    "entropy_target off_policy_mask_threshold use_bias_correction_kl vllm_importance_sampling_correction "
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min "
    "vllm_importance_sampling_cap": _NO_GRADIENT,
    "mask_truncated_completions": "has no place here: an answer that was cut off is never trained on",
    "cast_lm_head_to_fp32 pad_to_multiple_of cache_implementation use_transformers_continuous_batching "
    "transformers_continuous_batching_config use_transformers_paged log_multimodal log_completions_hub_repo": "has no "
    "counterpart here",
}
HINTS = {name: text for names, text in _GROUPS.items() for name in names.split()}


def no_option(before: str, name: str, options: dict[str, str]) -> str:
    """Report a name that is none of the `options`, which maps theirs to how they are written, after some words."""
    found = next(iter(get_close_matches(name, options, n=1, cutoff=0.75)), None)
    alike = f"{before}, did you mean {options[found]!r}?" if found not in (None, name) else f"{before}."
    if found not in HINTS:
        return alike
    ending = " Leave it out." if HINTS[found].startswith("has no") else ""
    return f"{alike} GRPO's `{found}` {HINTS[found]}.{ending}"
