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

"""Load the model to train."""

import math
from typing import TYPE_CHECKING

import torch
from accelerate.logging import get_logger
from accelerate.utils import is_peft_model
from transformers import PreTrainedConfig, PreTrainedModel
from trl.trainer.utils import create_model_from_path, disable_dropout_in_model

from ..nlac_config import NLACConfig


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
    """
    Load the model to train.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model id or path, or an instance.
        args ([`NLACConfig`]):
            Options of the run.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to wrap it in.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            How to quantize a model that is loaded by name.

    Raises:
        ValueError: If there are two quantization configurations.
    """
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
            # As in TRL: recomputed layers must find their weights gathered.
            args.gradient_checkpointing_kwargs = {**(args.gradient_checkpointing_kwargs or {}), "use_reentrant": True}
        model.enable_input_require_grads()
    if args.disable_dropout:
        disable_dropout_in_model(model)
    rounds = any(p.requires_grad and p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    if rounds and not is_peft_model(model) and args.deepspeed_plugin is None:
        logger.warning(
            f"The weights to train are in {model.dtype}, in which small updates are rounded away. Load the model in "
            "float32 (`model_init_kwargs={'dtype': 'float32'}`; `bf16=True` still computes in bfloat16), or use "
            "DeepSpeed."
        )
    return model


def fit_to_context(args: NLACConfig, config: PreTrainedConfig) -> None:
    """
    Lower `max_prompt_length` to what the model's context has room for beside an answer, with a warning. Longer
    histories are cut, as always.

    Args:
        args ([`NLACConfig`]):
            Options of the run, which change.
        config ([`~transformers.PreTrainedConfig`]):
            Configuration of the model.

    Raises:
        ValueError: If the context has no room for more than an answer.
    """
    config = config.get_text_config()
    name = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    context = config.to_dict().get(name)  # some models have no limit
    if context is None or (args.max_prompt_length or math.inf) + args.max_completion_length <= context:
        return
    room = context - args.max_completion_length
    if room < 1:
        raise ValueError(
            f"`max_completion_length={args.max_completion_length}` leaves no room for a prompt in the context of the "
            f"model, which is {context} tokens (`max_position_embeddings`). Lower it."
        )
    logger.warning(
        f"The context of the model is {context} tokens (`max_position_embeddings`), and `max_prompt_length="
        f"{args.max_prompt_length}` with `max_completion_length={args.max_completion_length}` needs more: longer "
        f"histories are cut to `max_prompt_length={room}`. Lower one of these options, or use a model with a longer "
        "context."
    )
    args.max_prompt_length = room
