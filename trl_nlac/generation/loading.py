# SPDX-License-Identifier: Apache-2.0

"""Load the generator that the options ask for."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, is_peft_model
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from ..options.generation_options import GenerationOptions
from ..private_names import is_vllm_available
from ..shards import is_zero3
from .generator import Generator
from .joint import JointGenerator, TensorParallelGenerator
from .transformers import TransformersGenerator


def load_generator(
    model: PreTrainedModel,
    options: GenerationOptions,
    accelerator: Accelerator,
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: list[int],
    trust_remote_code: bool = False,
    gradient_checkpointing_kwargs: dict[str, Any] | None = None,
    revision: str | None = None,
) -> Generator:
    """
    Load the generator of a model in training. With `gradient_checkpointing_kwargs` gradient checkpointing is enabled
    again after generation; `revision` is for vLLM in this process, which loads base weights from the Hub itself. Raise
    a `ValueError` if weights are sharded in a way that is not supported, also with vLLM or on several nodes, or if
    vLLM would not serve an adapter as the model has it, or cannot compute it in this precision. Raise an `ImportError`
    if `use_vllm` is set and vLLM is not installed. Raise a `ConnectionError` if a vLLM server is configured and none
    answers.
    """
    check_sharding(accelerator)
    is_fsdp = accelerator.distributed_type == DistributedType.FSDP
    is_sharded = is_fsdp or is_zero3(accelerator.state.deepspeed_plugin)
    gathers = options.ds3_gather_for_generation or not is_sharded
    of_node = int(os.environ.get("LOCAL_WORLD_SIZE", accelerator.num_processes))
    if not gathers and not options.use_vllm and of_node < accelerator.num_processes:
        raise ValueError(
            "`ds3_gather_for_generation=False` without vLLM sends the whole model between the nodes for every token. "
            "Leave it out, so that each process gathers the model once, or generate with `use_vllm=True`."
        )
    generator = TransformersGenerator(
        accelerator,
        tokenizer,
        eos_token_ids,
        batch_size=options.max_generation_batch_size,
        gradient_checkpointing_kwargs=gradient_checkpointing_kwargs,
        gathers=gathers,
    )
    if not gathers:
        generator = JointGenerator(generator)
    if not options.use_vllm:
        return generator
    if is_peft_model(model) and is_fsdp:
        raise ValueError(
            "`use_vllm=True` with an adapter (`peft_config`) is not supported under FSDP2: vLLM loads whole adapters, "
            "and these weights are sharded. Use DeepSpeed or DDP, or train the whole model."
        )
    if is_peft_model(model):
        for adapter in model.peft_config.values():
            check_adapter(vars(adapter))
        if options.vllm_mode == "colocate":
            from .vllm.weights import PRECISIONS

            check_adapter_precision(PRECISIONS.get(accelerator.mixed_precision, model.dtype), accelerator.device.type)
    if not is_vllm_available():
        raise ImportError("`use_vllm=True` needs vLLM: `pip install trl-nlac[vllm]`.")
    from .engine import SyncedGenerator

    engine = _load_engine(model, options, accelerator, tokenizer, trust_remote_code, revision)
    generator = SyncedGenerator(engine, generator, eos_token_ids)
    is_shared = options.vllm_mode == "colocate" and options.vllm_tensor_parallel_size > 1
    return TensorParallelGenerator(generator, engine.tp_group) if is_shared else generator


# Ways to begin an adapter that change the base weights in memory.
_CHANGES_BASE = ("pissa", "corda", "olora", "mica", "loftq", "lora_ga")
# What vLLM does not read of an adapter, and does not refuse itself, as it does `use_dora` and `modules_to_save`.
_NOT_READ = ("rank_pattern", "alpha_pattern", "lora_bias", "layer_replication", "alora_invocation_tokens")


def check_adapter(config: dict[str, Any]) -> None:
    """Raise a `ValueError` if vLLM would sample from another model than that of the adapter."""
    if config["peft_type"] != "LORA":
        raise ValueError(
            f"vLLM serves adapters of the type LoRA, and `peft_type` of this one is {config['peft_type']}. Train a "
            "LoRA, or generate without vLLM."
        )
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGES_BASE):
        raise ValueError(
            f"`init_lora_weights={begun!r}` changes the base weights in memory, and vLLM loads those of the model's "
            "files. Use another initialization, or generate without vLLM."
        )
    for name in _NOT_READ:
        if config.get(name):
            raise ValueError(
                f"vLLM does not read `{name}` of an adapter, here {config[name]}. Train one without it, or generate "
                "without vLLM."
            )


def check_adapter_precision(dtype: torch.dtype | str | None, device_type: str) -> None:
    """Refuse an adapter that vLLM's kernels cannot compute in this precision, on such a device."""
    if device_type == "cuda" and str(dtype).removeprefix("torch.") in ("float32", "float"):
        raise ValueError(
            "vLLM computes adapters on a GPU in bfloat16 or float16, and this model is in float32. Set `bf16=True`, "
            "for an agent `dtype='bfloat16'`, or generate without vLLM."
        )


def check_sharding(accelerator: Accelerator) -> None:
    """Raise a `ValueError` if target weights cannot be kept in the shards, or processes share the samples of one."""
    parallelism = accelerator.parallelism_config
    if parallelism is not None and parallelism.non_dp_dim_names:
        sizes = ", ".join(f"`{name}_size`" for name in parallelism.non_dp_dim_names)
        raise ValueError(
            f"{sizes} above 1 in `parallelism_config` is not supported: each process plays episodes and trains on "
            "samples of its own. Leave it at 1, and shard the weights with FSDP2 (`dp_shard_size`, "
            "`dp_replicate_size`) or ZeRO-3."
        )
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ValueError("FSDP 1 is not supported: set `fsdp_version: 2` in the configuration of Accelerate.")
    plugin = accelerator.state.deepspeed_plugin
    if is_zero3(plugin):
        offload = plugin.deepspeed_config["zero_optimization"].get("offload_param") or {}
        if offload.get("device") == "nvme":
            raise ValueError(
                '`offload_param` to "nvme" is not supported: target weights must be swapped in. Use "cpu".'
            )


def _load_engine(
    model: PreTrainedModel,
    options: GenerationOptions,
    accelerator: Accelerator,
    tokenizer: PreTrainedTokenizerBase,
    trust_remote_code: bool,
    revision: str | None,
) -> Any:
    """Load the vLLM engine that the options ask for."""
    common = {
        "mode": options.vllm_mode,
        "max_num_seqs": options.max_generation_batch_size,
        "trust_remote_code": trust_remote_code,
    }
    if options.vllm_mode == "server":
        from .vllm.server_engine import ServerEngine

        return ServerEngine(
            model,
            accelerator,
            tokenizer,
            server_base_url=options.vllm_server_base_url,
            server_host=options.vllm_server_host,
            server_port=options.vllm_server_port,
            server_timeout=options.vllm_server_timeout,
            group_port=options.vllm_group_port,
            weights_dir=options.vllm_server_weights_dir,
            **common,
        )
    from .vllm.colocate import ColocatedEngine

    return ColocatedEngine(
        model,
        accelerator,
        tokenizer,
        tensor_parallel_size=options.vllm_tensor_parallel_size,
        gpu_memory_utilization=options.vllm_gpu_memory_utilization,
        max_model_length=options.vllm_max_model_length,
        enable_sleep_mode=options.vllm_enable_sleep_mode,
        model_impl=options.vllm_model_impl,
        revision=revision,
        **common,
    )


def adapter_config(model: str, revision: str | None) -> dict[str, Any] | None:
    """Read the configuration of an adapter in a folder or on the Hub; `None` if there is none."""
    path = cached_file(model, "adapter_config.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


def fit_embeddings(model: PreTrainedModel, adapter: str, revision: str | None, trust_remote_code: bool) -> None:
    """Resize a base model's embeddings to those that an adapter saved, or at least to its tokenizer's tokens."""
    from peft import load_peft_weights

    of_input = model.get_input_embeddings()
    name = next(name for name, module in model.named_modules() if module is of_input)
    names = (f"{name}.weight", f"{name}.base_layer.weight")
    saved = load_peft_weights(adapter, device="cpu", revision=revision).items()
    number = next((len(rows) for key, rows in saved if key.endswith(names)), 0)
    missing_file = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
    if not number and cached_file(adapter, "tokenizer_config.json", **missing_file) is not None:
        tokenizer = AutoTokenizer.from_pretrained(adapter, revision=revision, trust_remote_code=trust_remote_code)
        number = max(of_input.num_embeddings, len(tokenizer))
    if number not in (0, of_input.num_embeddings):
        model.resize_token_embeddings(number)
