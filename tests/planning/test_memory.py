# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import pytest
import torch
from helpers.launch import run_program
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

from trl_nlac import TargetWeights
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.method.target_weights import InitialWeights
from trl_nlac.planning.memory import Precision, Sharing, set_aside, states
from trl_nlac.planning.shape import model_shape


HERE = Path(__file__).parent
REAL = [
    "tiny,real,plain,4,full,kept,256,64",
    "tiny,real,plain,4,full,checkpointed,256,64",
    "tiny,real,plain,4,lora,checkpointed,256,64",
    "45m,real,plain,4,full,checkpointed,96,32",
    "0.5b,real,plain,4,lora,checkpointed,96,32",
]
# Without data: bfloat16, which this CPU computes slowly, and the shape of a model of 7B.
COUNTED = [
    "tiny,fake,plain,4,full,checkpointed,256,64",  # as the real one
    "tiny,fake,none,4,full,kept,256,64",
    "135m,fake,none,4,full,checkpointed,1024,256",
    "0.5b,fake,none,4,full,checkpointed,1024,256",
    "0.5b,fake,none,4,lora,checkpointed,1024,256",
    "7b,fake,zero3,2,full,checkpointed,8192,512",
    "7b,fake,zero3,2,full,checkpointed,32256,512",  # the paper's context
    "7b,fake,none,2,lora,checkpointed,4096,512",
]
LORA = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")


def test_peaks_of_a_pass():
    printed = run_program(HERE / "peaks.py", *REAL, *COUNTED)
    results = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [result["case"] for result in results] == [*REAL, *COUNTED]
    for result in results:
        assert result["planned"] == pytest.approx(result["measured"], rel=0.15), result


@pytest.mark.parametrize("adapters", [False, True])
def test_states_are_counted_exactly(adapters):
    """Weights, gradients, AdamW's moments, target and initial weights of a step, byte by byte."""
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    if adapters:
        model = get_peft_model(model, LORA)
    optimizer = torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)
    model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    optimizer.step()
    moments = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    held = {
        "weights": model.parameters(),
        "gradients": [parameter.grad for parameter in model.parameters() if parameter.grad is not None],
        "optimizer": moments,
        "target weights": TargetWeights(model).state_dict().values(),
        "initial weights": InitialWeights(model).state_dict().values(),
    }
    shape = model_shape(AutoConfig.from_pretrained(TINY_MODEL), LORA if adapters else None)
    precision = Precision.of("none", 4, False, adapters)
    planned = states(shape, Sharing("none", 1), precision, "adamw_torch")
    assert planned == {name: sum(tensor.nbytes for tensor in tensors) for name, tensors in held.items()}


def test_states_are_divided_among_processes():
    """In bytes of a parameter: DeepSpeed keeps the moments and one more copy in float32."""
    shape, sharing = model_shape(AutoConfig.from_pretrained(TINY_MODEL)), Sharing("zero3", 8)
    precision = Precision.of("zero3", 4, True, False)
    held = {**states(shape, sharing, precision, "adamw_torch"), "aside": set_aside(shape, sharing, precision)}
    found = [8 * size / shape.parameters for size in held.values()]
    assert found == [2, 2, 12, 4, 2, 2]  # weights, gradients, optimizer, target and initial weights, those set aside


def test_parameters_are_counted_without_weights():
    config = Qwen2Config(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_attention_heads=4, tie_word_embeddings=True
    )
    config.num_hidden_layers, config.num_key_value_heads = 3, 2
    config = Qwen2Config(**{**config.to_dict(), "layer_types": None})
    model = AutoModelForCausalLM.from_config(config)
    shape = model_shape(config)
    assert shape.parameters == shape.trained == model.num_parameters() and shape.is_tied
    assert shape.cache_bytes == 2 * 3 * (2 * 8) * 2


def test_a_mixture_of_experts_that_fits_into_no_memory_is_counted():
    config = Qwen3MoeConfig(
        **{"hidden_size": 8192, "moe_intermediate_size": 8192, "num_experts": 8192, "num_hidden_layers": 1},
        **{"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 64, "num_experts_per_tok": 2},
    )
    assert model_shape(config).largest == 8192 * 2 * 8192 * 8192
