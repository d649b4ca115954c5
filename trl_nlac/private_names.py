# SPDX-License-Identifier: Apache-2.0

"""What is used of other packages beyond their public names, loaded when it is asked for."""

from importlib import import_module


_NAMES = {
    "accelerate.commands.config.config_args": "load_config_from_file",
    "accelerate.commands.launch": "launch_command_parser",
    "deepspeed.runtime.zero.parameter_offload": "DeepSpeedZeRoOffload",
    "torch._dynamo.exc": "FailOnRecompileLimitHit",
    "torch.distributed.tensor._utils": "compute_local_shape_and_global_offset",
    "transformers.integrations.flex_attention": "flex_attention_forward",
    "transformers.integrations.sdpa_attention": "repeat_kv sdpa_attention_forward",
    "transformers.masking_utils": "sdpa_mask",
    "trl.chat_template_utils": "add_response_schema supports_tool_calling",
    "trl.generation.vllm_client": "VLLMClient",
    "trl.generation.vllm_generation": "VLLMGeneration empty_cache",
    "trl.import_utils": "is_vllm_available",
    "trl.models.utils": "unwrap_model_for_generation",
    "trl.trainer.base_config": "_BaseConfig",
    "trl.trainer.base_trainer": "_BaseTrainer",
    "trl.trainer.utils": "create_model_from_path disable_dropout_in_model get_callable_name get_comet_experiment_url "
    "get_config_model_id get_trackio_space_url identity print_prompt_completions_sample",
    "vllm.lora.request": "LoRARequest",
    "vllm.platforms": "current_platform",
    "vllm.sampling_params": "RequestOutputKind StructuredOutputsParams",
}
PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str):
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(PLACES[name]), name)  # modules of vLLM make some when they are asked
    except AttributeError as error:
        package = PLACES[name].partition(".")[0]
        raise ImportError(
            f"`{PLACES[name]}.{name}` is not in this version of {package}. Install one that trl-nlac asks for: "
            f"`pip install --upgrade trl-nlac {package}`."
        ) from error
