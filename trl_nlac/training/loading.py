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

"""From what a user passes to a model and a tokenizer that agree with each other."""

from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import DistributedType, is_peft_model
from transformers import AutoProcessor, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from trl.import_utils import is_vllm_available
from trl.trainer.utils import create_model_from_path, disable_dropout_in_model, get_config_model_id

from ..chat.encoder import ChatEncoder
from ..generation.base import Generator, JointGenerator, TransformersGenerator
from ..method.roles import Roles
from ..nlac_config import NLACConfig
from ..prompts import NLACPrompts


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import BitsAndBytesConfig

logger = get_logger(__name__)


def load_model(
    model: "str | PreTrainedModel",
    args: NLACConfig,
    peft_config: "PeftConfig | None" = None,
    quantization_config: "BitsAndBytesConfig | None" = None,
) -> PreTrainedModel:
    """The model to train: loaded if it is named, wrapped in an adapter if there is a `peft_config`."""
    if isinstance(model, str):
        model_init_kwargs = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
        if quantization_config is not None:
            if "quantization_config" in model_init_kwargs:
                raise ValueError(
                    "`quantization_config` is given both to the trainer and in `model_init_kwargs`. Give it only once."
                )
            model_init_kwargs["quantization_config"] = quantization_config
        if args.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
            model_init_kwargs["device_map"] = None  # "auto" does not work with distributed training
        model = create_model_from_path(model, **model_init_kwargs)
    elif args.model_init_kwargs is not None or quantization_config is not None:
        logger.warning(
            "`model_init_kwargs` and `quantization_config` are ignored, because `model` is already instantiated."
        )
    if peft_config is not None:
        from trl.experimental.utils import prepare_peft_model

        model = prepare_peft_model(model, peft_config, args)
    if is_peft_model(model) and args.gradient_checkpointing:
        plugin = args.deepspeed_plugin
        if plugin is not None and plugin.zero_stage == 3:
            # As in TRL: what is computed again must find its weights gathered.
            args.gradient_checkpointing_kwargs = {**(args.gradient_checkpointing_kwargs or {}), "use_reentrant": True}
        model.enable_input_require_grads()
    if args.disable_dropout:
        disable_dropout_in_model(model)
    rounds = any(p.requires_grad and p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    if rounds and not is_peft_model(model) and args.deepspeed_plugin is None:
        logger.warning(
            f"The weights to train are in {model.dtype}, in which small updates are rounded away. Load the model in float32, "
            "with which `bf16=True` computes in bfloat16 (`model_init_kwargs={'dtype': 'float32'}`), or use DeepSpeed."
        )
    return model


def load_tokenizer(
    processing_class: PreTrainedTokenizerBase | ProcessorMixin | None, model: PreTrainedModel, args: NLACConfig
) -> PreTrainedTokenizerBase:
    """
    The tokenizer, with a padding token that the model knows of.

    Raises:
        ValueError: If it has neither a padding nor an end-of-sequence token.
        TypeError: If `processing_class` is neither a tokenizer nor a processor.
    """
    if processing_class is None:
        processing_class = AutoProcessor.from_pretrained(
            get_config_model_id(model.config),
            revision=(args.model_init_kwargs or {}).get("revision"),
            trust_remote_code=args.trust_remote_code,
        )
    if isinstance(processing_class, ProcessorMixin):
        processing_class = processing_class.tokenizer
    if not isinstance(processing_class, PreTrainedTokenizerBase):
        raise TypeError(f"`processing_class` must be a tokenizer or a processor, got {processing_class!r}.")
    if processing_class.pad_token is None:
        if processing_class.eos_token is None:
            raise ValueError(
                "The tokenizer (`processing_class`) has neither a `pad_token` nor an `eos_token`. Set "
                "`tokenizer.pad_token`."
            )
        processing_class.pad_token = processing_class.eos_token
    model.config.get_text_config().pad_token_id = processing_class.pad_token_id
    model.generation_config.pad_token_id = processing_class.pad_token_id
    return processing_class


def check_sharding(accelerator: Accelerator) -> None:
    """
    Raises:
        ValueError: If weights are sharded in a way in which target weights cannot be kept.
    """
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ValueError("FSDP 1 is not supported: set `fsdp_version: 2` in the configuration of Accelerate.")
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None and plugin.zero_stage == 3:
        offload = plugin.deepspeed_config["zero_optimization"].get("offload_param") or {}
        if offload.get("device") == "nvme":
            raise ValueError(
                '`offload_param` to "nvme" is not supported: target weights must be swapped in. Use "cpu".'
            )


def load_generator(
    model: PreTrainedModel,
    args: NLACConfig,
    accelerator: Accelerator,
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: list[int],
) -> Generator:
    """
    What the roles speak through.

    Raises:
        ValueError: If weights are sharded in a way that is not supported, also with vLLM.
        ImportError: If `use_vllm` is set and vLLM is not installed.
        ConnectionError: If there should be a vLLM server and there is none.
    """
    check_sharding(accelerator)
    plugin = accelerator.state.deepspeed_plugin
    is_zero3 = plugin is not None and plugin.zero_stage == 3
    gathers = args.ds3_gather_for_generation if is_zero3 else accelerator.distributed_type != DistributedType.FSDP
    generator = TransformersGenerator(
        accelerator,
        tokenizer,
        eos_token_ids,
        batch_size=args.max_generation_batch_size,
        gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
        gathers=gathers,
    )
    if not gathers:
        generator = JointGenerator(generator)
    if not args.use_vllm:
        return generator
    if is_peft_model(model) and accelerator.distributed_type == DistributedType.FSDP:
        raise ValueError(
            "`use_vllm=True` with an adapter (`peft_config`) is not supported under FSDP2: an adapter is handed over whole, and "
            "its weights are sharded. Use DeepSpeed or DDP, or train the whole model."
        )
    if not is_vllm_available():
        raise ImportError("`use_vllm=True` needs vLLM: `pip install trl-nlac[vllm]`.")
    from ..generation.engine import TensorParallelGenerator, VLLMGenerator

    options = {
        "mode": args.vllm_mode,
        "max_num_seqs": args.max_generation_batch_size,
        "trust_remote_code": args.trust_remote_code,
    }
    if args.vllm_mode == "server":
        from ..generation.vllm.server import ServerEngine

        engine = ServerEngine(
            *(model, accelerator, tokenizer),
            server_base_url=args.vllm_server_base_url,
            server_host=args.vllm_server_host,
            server_port=args.vllm_server_port,
            server_timeout=args.vllm_server_timeout,
            group_port=args.vllm_group_port,
            weights_dir=args.vllm_server_weights_dir,
            **options,
        )
        return VLLMGenerator(engine, generator, eos_token_ids)
    from ..generation.vllm.colocate import ColocatedEngine

    engine = ColocatedEngine(
        *(model, accelerator, tokenizer),
        tensor_parallel_size=args.vllm_tensor_parallel_size,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
        model_impl=args.vllm_model_impl,
        **options,
    )
    generator = VLLMGenerator(engine, generator, eos_token_ids)
    return generator if args.vllm_tensor_parallel_size == 1 else TensorParallelGenerator(generator, engine.tp_group)


def make_roles(
    generator: Generator | None,
    chat: ChatEncoder,
    prompts: NLACPrompts | None,
    args: NLACConfig,
    tools: list[dict[str, Any]] | None = None,
    shows_progress: bool = False,
) -> Roles:
    """
    The roles as a configuration has them. Without a generator they encode and decode, and cannot be asked.

    Raises:
        ValueError: If the chat template cannot do what an option asks for.
    """
    return Roles(
        *(generator, chat, prompts or NLACPrompts(), args.samplings, args.action_format),
        max_format_retries=args.max_format_retries,
        num_futures=args.num_futures,
        single_step=args.single_step,
        reasoning=args.reasoning,
        tools=tools,
        shows_progress=shows_progress,
    )


def ending_token_ids(
    tokenizer: PreTrainedTokenizerBase, stop_ids: list[int], generation_config: GenerationConfig | None = None
) -> list[int]:
    """Every token that ends a completion: of the template, of the tokenizer, and all that the model declares."""
    declared = generation_config.eos_token_id if generation_config else None
    declared = declared if isinstance(declared, list) else [declared]
    token_ids = [*stop_ids, tokenizer.eos_token_id, *declared]
    return [token_id for token_id in dict.fromkeys(token_ids) if token_id is not None]
