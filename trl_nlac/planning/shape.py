# SPDX-License-Identifier: Apache-2.0

"""The sizes of a model, from its configuration alone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig


if TYPE_CHECKING:
    from peft import PeftConfig


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model."""

    parameters: int  # number of parameters, adapters included. Tied ones count once.
    trained: int  # number of those that are trained
    active: int  # number of those that compute a token: of a mixture of experts, the chosen experts alone
    # number of those in linear layers other than the head, which `load_in_4bit` and `load_in_8bit` shrink
    quantizable: int
    largest: int  # number of values of the largest parameter
    is_tied: bool  # whether the head has the weights of the embeddings
    in_layer: int  # number of parameters of a layer, on average
    adapter_inputs: int  # number of inputs of the adapters of a layer, on average; 0 without adapters
    widest_adapter: int  # number of inputs of the widest adapter
    adapter_rank: int  # highest rank of an adapter; 0 without adapters
    drops_inputs: bool  # whether the adapters have dropout
    num_layers: int  # as in the configuration
    hidden_size: int
    # width of the feed-forward block, of a mixture of experts that of the chosen experts together
    intermediate_size: int
    num_heads: int
    query_size: int  # heads, or key/value heads, times the head dimension
    key_value_size: int
    vocab_size: int

    @property
    def has_adapters(self) -> bool:
        return self.trained < self.parameters

    @property
    def cache_bytes(self) -> int:
        """Bytes of a token in a key/value cache, with 2 bytes a value: 2 (keys, values) x layers x kv size x 2."""
        return 2 * self.num_layers * self.key_value_size * 2


def model_shape(
    config: PreTrainedConfig, peft_config: "PeftConfig | None" = None, trust_remote_code: bool = False
) -> ModelShape:
    """
    Count the parameters of a model that is made without memory, on the meta device, so that any architecture of
    `AutoModelForCausalLM` can be counted. Raise a `ValueError` if the configuration is not that of a language model,
    or lacks a size.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer is not head]
    quantizable = sum(layer.weight.numel() for layer in linear)
    if peft_config is not None:
        from peft import get_peft_model

        with torch.device("meta"):
            model = get_peft_model(model, peft_config)
    text = config.get_text_config()
    sizes = _Sizes(text)
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    head_size = sizes.get("head_dim", hidden // heads)
    num_layers = sizes["num_hidden_layers"]
    chosen, experts = sizes.get("num_experts_per_tok", 1), sizes.get("num_experts", sizes.get("num_local_experts", 1))
    width = sizes.get("moe_intermediate_size", sizes.get("intermediate_size", 4 * hidden)) * chosen
    # Of the first half of each adapter, which keeps its input for its gradient.
    adapters = [layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and ".lora_A." in name]
    adapter_inputs = [layer.in_features for layer in adapters]
    number = {name: parameter.numel() for name, parameter in model.named_parameters()}
    of_experts = sum(n for name, n in number.items() if ".experts." in name)
    return ModelShape(
        parameters=sum(number.values()),
        trained=sum(number[name] for name, parameter in model.named_parameters() if parameter.requires_grad),
        active=sum(number.values()) - of_experts * (experts - chosen) // experts,
        quantizable=quantizable,
        largest=max(number.values()),
        is_tied=head is not None and head.weight is embeddings.weight,
        in_layer=sum(n for name, n in number.items() if ".layers." in name or ".h." in name) // num_layers,
        adapter_inputs=sum(adapter_inputs) // num_layers,
        widest_adapter=max(adapter_inputs, default=0),
        adapter_rank=max((layer.out_features for layer in adapters), default=0),
        drops_inputs=peft_config is not None and bool(peft_config.to_dict().get("lora_dropout")),
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=width,
        num_heads=heads,
        query_size=heads * head_size,
        key_value_size=sizes.get("num_key_value_heads", heads) * head_size,
        vocab_size=sizes["vocab_size"],
    )


class _Sizes:
    """Sizes of a configuration under the usual names, whatever the model calls them."""

    def __init__(self, config: PreTrainedConfig):
        self.values: dict[str, Any] = config.to_dict()
        self.names = config.attribute_map
        self.model_type = config.model_type

    def get(self, name: str, default: int) -> int:
        value = self.values.get(self.names.get(name, name))
        return default if value is None else value

    def __getitem__(self, name: str) -> int:
        value = self.get(name, 0)
        if not value:
            raise ValueError(f"the configuration of a {self.model_type!r} model has no `{name}`.")
        return value
