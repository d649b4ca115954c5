# SPDX-License-Identifier: Apache-2.0

"""What is used of TRL and transformers beyond their public names, loaded when it is asked for."""

from importlib import import_module


PLACES = {
    "VLLMClient": "trl.generation.vllm_client",
    "VLLMGeneration": "trl.generation.vllm_generation",
    "_BaseConfig": "trl.trainer.base_config",
    "_BaseTrainer": "trl.trainer.base_trainer",
    "add_response_schema": "trl.chat_template_utils",
    "create_model_from_path": "trl.trainer.utils",
    "disable_dropout_in_model": "trl.trainer.utils",
    "empty_cache": "trl.generation.vllm_generation",
    "flex_attention_forward": "transformers.integrations.flex_attention",
    "get_callable_name": "trl.trainer.utils",
    "get_comet_experiment_url": "trl.trainer.utils",
    "get_config_model_id": "trl.trainer.utils",
    "get_trackio_space_url": "trl.trainer.utils",
    "identity": "trl.trainer.utils",
    "is_vllm_available": "trl.import_utils",
    "print_prompt_completions_sample": "trl.trainer.utils",
    "repeat_kv": "transformers.integrations.sdpa_attention",
    "sdpa_attention_forward": "transformers.integrations.sdpa_attention",
    "sdpa_mask": "transformers.masking_utils",
    "supports_tool_calling": "trl.chat_template_utils",
    "unwrap_model_for_generation": "trl.models.utils",
}


def __getattr__(name: str):
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return vars(import_module(PLACES[name]))[name]
    except KeyError as error:
        package = PLACES[name].partition(".")[0]
        raise ImportError(
            f"`{PLACES[name]}.{name}` is not in this version of {package}. Install one that trl-nlac asks for: "
            f"`pip install --upgrade trl-nlac {package}`."
        ) from error
