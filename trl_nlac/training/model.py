# SPDX-License-Identifier: Apache-2.0

"""Load the model to train."""

from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import is_peft_model
from transformers import PreTrainedModel
from transformers.utils import cached_file

from ..generation.loading import fit_embeddings
from ..nlac_config import NLACConfig
from ..private_names import create_model_from_path, disable_dropout_in_model
from ..secrets import hide_secrets
from ..shards import is_zero3
from ..terminal import shown
from .arguments import named


if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import BitsAndBytesConfig

logger = get_logger(__name__)

TYPES_OF_VIRTUAL_KEYS = ("PREFIX_TUNING", "CARTRIDGE")  # of adapters, whose virtual tokens are keys and values alone
# Optimizers that DeepSpeed also has for states in CPU memory.
OFFLOADED_OPTIMIZERS = {"adamw_torch", "adamw_torch_fused", "adagrad", "lion_32bit"}


def load_model(
    model: "str | PreTrainedModel",
    args: NLACConfig,
    peft_config: "PeftConfig | None" = None,
    quantization_config: "BitsAndBytesConfig | None" = None,
) -> PreTrainedModel:
    """
    Load the model to train, by its id or path, or take an instance. An adapter wraps it with `peft_config`, and
    `quantization_config` quantizes a model that is loaded by name. Raise a `ValueError` if the model cannot be loaded
    or wrapped, generates no text, has weights that are not finite, or an adapter with virtual tokens in the sequence.
    """
    if isinstance(model, str):
        model = load_by_name(model, args, quantization_config)
        is_whole = peft_config is None and not is_peft_model(model)
        if quantization_config is not None and is_whole and not model.hf_quantizer.is_qat_trainable:
            raise ValueError(
                "`quantization_config` makes a purely quantized model, and its weights cannot be trained. Give a "
                "`peft_config` as well."
            )
    elif args.model_init_kwargs is not None or quantization_config is not None:
        logger.warning(
            "`model_init_kwargs` and `quantization_config` are ignored, because `model` is already instantiated."
        )
    _check_model(model)
    if args.num_idle_gpus:
        number = 1 + args.num_idle_gpus
        logger.warning(
            f"This process sees {number} GPUs and trains on the first of them. To train on all, start a process for "
            f"each: `accelerate launch --num_processes {number} ...`."
        )
    if peft_config is not None:
        model = _add_adapter(model, peft_config, args)
    if is_peft_model(model):
        _check_virtual_tokens(model)
    if is_peft_model(model) and args.gradient_checkpointing:
        if is_zero3(args.deepspeed_plugin):
            # As in TRL: recomputed layers must find their weights gathered.
            args.set_checkpointing_kwargs({**(args.gradient_checkpointing_kwargs or {}), "use_reentrant": True})
        model.enable_input_require_grads()
    if args.disable_dropout:
        disable_dropout_in_model(model)
    if not any(weights.requires_grad for weights in model.parameters()):
        raise ValueError("`model` has no weights to train: none requires a gradient. Call `model.requires_grad_()`.")
    rounds = any(p.requires_grad and p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    if rounds and not is_peft_model(model) and args.deepspeed_plugin is None:
        logger.warning(
            f"The weights to train are in {model.dtype}, in which small updates are rounded away. Load the model in "
            "float32 (`model_init_kwargs={'dtype': 'float32'}`; `bf16=True` still computes in bfloat16), or use "
            "DeepSpeed."
        )
    if args.deepspeed_plugin is not None:
        warn_of_replaced_optimizer(args.optim.value, args.deepspeed_plugin.deepspeed_config)
    return model


def warn_of_replaced_optimizer(optim: str, deepspeed_config: dict[str, Any]) -> None:
    """Warn where Accelerate trains with another optimizer, as it does when the states are offloaded."""
    offload = deepspeed_config.get("zero_optimization", {}).get("offload_optimizer") or {}
    is_replaced = offload.get("device", "none") != "none" and deepspeed_config.get("zero_force_ds_cpu_optimizer", True)
    if is_replaced and "optimizer" not in deepspeed_config and optim not in OFFLOADED_OPTIMIZERS:
        logger.warning(
            f"`optim={optim!r}` is not used: where the optimizer's states are offloaded, Accelerate trains with "
            "DeepSpeed's Adam. Set `optim='adamw_torch'`, or `\"zero_force_ds_cpu_optimizer\": false` in the "
            "configuration of DeepSpeed."
        )


def choose_aux_loss(args: NLACConfig, model: "PreTrainedModel | PeftModel") -> None:
    """Set an open `router_aux_loss_coef` to the configuration's; a `ValueError` where the model has no such loss."""
    base, coefficient = model.get_base_model() if is_peft_model(model) else model, args.router_aux_loss_coef
    if "output_router_logits" in signature(base.forward).parameters:
        if coefficient is None:
            args.router_aux_loss_coef = base.config.get_text_config().to_dict().get("router_aux_loss_coef") or 0.0
    elif coefficient:
        raise ValueError(
            f"`router_aux_loss_coef={coefficient}` weighs the loss that balances the experts of a model, and "
            f"{type(base).__name__} computes none. Leave it out."
        )
    else:
        args.router_aux_loss_coef = 0.0


def load_by_name(
    name: str, args: NLACConfig, quantization_config: "BitsAndBytesConfig | None" = None, **defaults: Any
) -> PreTrainedModel:
    """Load a model by its id or path, with `model_init_kwargs` and, where these are silent, `defaults`."""
    kwargs = {"trust_remote_code": args.trust_remote_code, **defaults, **(args.model_init_kwargs or {})}
    if quantization_config is not None:
        if "quantization_config" in kwargs:
            raise ValueError(
                "`quantization_config` is given both to the trainer and in `model_init_kwargs`. Give it only once."
            )
        kwargs["quantization_config"] = quantization_config
    if args.distributed_state.distributed_type != "NO":
        kwargs["device_map"] = None  # each process has the device that Accelerate gives it
    elif args.device.type not in ("cpu", "mps"):
        kwargs.setdefault("device_map", {"": args.device})  # TRL's "auto" would spread it over all GPUs
    with named(f"`model={name!r}`, loaded with {shown(hide_secrets(kwargs))} (see `model_init_kwargs`),"):
        adapter = adapter_config(name, kwargs.get("revision"))
        if adapter is None:
            return create_model_from_path(name, **kwargs)
        return _load_with_adapter(name, adapter, {**kwargs, "revision": adapter.revision})


def adapter_config(name: str, revision: str | None = None) -> "PeftConfig | None":
    """Return a saved adapter's configuration, `None` of a whole model; a `ValueError` for another revision."""
    if not is_adapter(name):
        return None
    if revision not in (None, "main"):  # "main" is the default of `--model_revision`
        raise ValueError(
            f"this is an adapter, and `revision={revision!r}` can be its own or that of its base model. Leave out "
            "`--model_revision`, and name a folder that has this revision of the adapter. In Python, load it with "
            "`peft.PeftModel.from_pretrained(base_model, ..., is_trainable=True)`, and give that as `model`."
        )
    from peft import PeftConfig

    return PeftConfig.from_pretrained(name)


def _load_with_adapter(name: str, config: "PeftConfig", kwargs: dict[str, Any]) -> "PeftModel":
    """
    Load an adapter on its base model, of the class in which a base model is loaded by its own name. PEFT would take
    that of causal language models, in which the weights of a multimodal model have other names: it would warn that it
    found no weights of the adapter, and go on.
    """
    from peft import PeftModel

    model = create_model_from_path(config.base_model_name_or_path, **kwargs)
    fit_embeddings(model, name, None, kwargs["trust_remote_code"])
    return PeftModel.from_pretrained(model, name, is_trainable=True)


def is_adapter(name: str) -> bool:
    """Whether a folder, or a repository on the Hub, has an adapter and no whole model."""
    whole, adapter = (
        cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        for file in ("config.json", "adapter_config.json")
    )
    return whole is None and adapter is not None


def base_revision(model: "PreTrainedModel | PeftModel", args: NLACConfig) -> str | None:
    """Return the revision of a loaded model: that of the base model in its adapter, or in `model_init_kwargs`."""
    of_adapter = model.active_peft_config.revision if is_peft_model(model) else None
    return of_adapter or (args.model_init_kwargs or {}).get("revision")


def tokenizer_folder(name: str) -> str | None:
    """Return the folder of an adapter if it has a tokenizer, as a trainer saves one with it; `None` if it is none."""
    return name if Path(name, "tokenizer_config.json").is_file() and is_adapter(name) else None


def _check_model(model: "PreTrainedModel | PeftModel") -> None:
    base = model.get_base_model() if is_peft_model(model) else model
    if not base.can_generate() or base.config.is_encoder_decoder:
        raise ValueError(
            f"`model` is a {type(base).__name__}, which is no causal language model. Give one that continues text, "
            "such as those of `AutoModelForCausalLM`."
        )
    if is_peft_model(model) and model.active_adapter != "default":
        raise ValueError(
            f"The active adapter of `model` is {model.active_adapter!r}. PEFT saves one of that name into a folder of "
            "its own within every checkpoint, where neither a resume nor an agent looks for it. Call it 'default', as "
            "`get_peft_model` and `PeftModel.from_pretrained` do without `adapter_name`."
        )
    devices = sorted({str(weights.device) for weights in model.parameters() if not weights.is_meta})
    if len(devices) > 1:
        raise ValueError(
            f"`model` is spread over the devices {', '.join(devices)}, and every process trains on one. Load it "
            "without `device_map` (see `model_init_kwargs`); if it does not fit on one GPU, start a process for each "
            "and shard it, for example with `--accelerate_config zero3`."
        )
    for name, weights in model.named_parameters():
        if weights.is_meta:
            raise ValueError(f"`model` has no weights: `{name}` is on the device 'meta'. Load the model.")
        # Neither quantized weights nor those of other processes.
        if weights.is_floating_point() and weights.element_size() > 1 and weights.numel():
            if not all(extreme.isfinite() for extreme in weights.detach().aminmax()):
                raise ValueError(f"`model` has weights that are not finite, in `{name}`. Load another checkpoint.")


def _add_adapter(model: PreTrainedModel, peft_config: "PeftConfig", args: NLACConfig) -> "PeftModel":
    """Wrap a model in an adapter, in the precisions that [`~trl.GRPOTrainer`] gives it."""
    from peft import get_peft_model

    if is_peft_model(model):
        raise ValueError(
            "`model` has an adapter already, and `peft_config` would add another. Leave `peft_config` out to train "
            "that of the model, or merge it into the model (`merge_and_unload`) first."
        )
    is_quantized = vars(model).get("is_loaded_in_4bit") or vars(model).get("is_loaded_in_8bit")
    # ZeRO-3 gathers weights that it keeps whole in buffers of one precision.
    precision = {"autocast_adapter_dtype": False} if is_zero3(args.deepspeed_plugin) and not is_quantized else {}
    with named(f"`peft_config={shown(peft_config)}`"):
        model = get_peft_model(model, peft_config, **precision)
    if is_quantized:  # as in QLoRA; updates of DoRA's magnitudes would be rounded away
        for name, weights in model.named_parameters():
            if weights.requires_grad and "lora_magnitude_vector" not in name:
                weights.data = weights.data.to(torch.bfloat16)
    return model


def _check_virtual_tokens(model: "PeftModel") -> None:
    """Refuse an adapter that puts virtual tokens before a prompt, where those of the model's output would move."""
    config = model.active_peft_config
    if config.is_prompt_learning and config.peft_type not in TYPES_OF_VIRTUAL_KEYS:
        raise ValueError(
            f"`{type(config).__name__}` makes an adapter that puts {config.num_virtual_tokens} virtual tokens before "
            "every prompt, so that the model's output is about other tokens than its input. Train one that changes "
            "layers (`LoraConfig`), or the keys and values before a prompt (`PrefixTuningConfig`)."
        )
