# SPDX-License-Identifier: Apache-2.0

"""
Compare losses and gradients of small models that two processes train on trees, each with its share of a step and with
its output layer called in chunks, with those of the same model in one process on separate sequences.

torchrun --nproc_per_node 2 same_gradients.py OUTPUT_DIR
"""

import random
import sys
from pathlib import Path

import deepspeed  # before any Accelerator, which does not import it on a CPU
import torch
from accelerate.utils import gather_object
from deepspeed.utils import safe_get_full_grad
from helpers.testing_utils import make_config
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen3Config

from trl_nlac import TargetWeights
from trl_nlac.method import head
from trl_nlac.method.batches import NLACCollator, spread_by_prefix
from trl_nlac.method.losses import batch_losses
from trl_nlac.training.chunked_head import can_chunk_head
from trl_nlac.training.tree_attention import start_sharing
from trl_nlac.types import Prompt, TrainingExample


deepspeed.init_distributed("gloo")
ARGS = make_config(Path(sys.argv[1]))
RANK, WORLD_SIZE = ARGS.process_index, ARGS.world_size
SMALL = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=16
)
CONFIGS = {
    "llama": LlamaConfig(**SMALL, num_hidden_layers=2),
    "qwen3": Qwen3Config(**SMALL, num_hidden_layers=2, tie_word_embeddings=True),
    "gemma3": Gemma3TextConfig(**SMALL, num_hidden_layers=6, sliding_window=8),
}
head._CHUNK = 8  # so that processes have different numbers of chunks


def make_model(name: str, is_adapted: bool, checkpoints: bool) -> nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="sdpa")
    if is_adapted:
        lora = LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
        model.enable_input_require_grads()
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def make_examples(distills: bool) -> list[TrainingExample]:
    """Examples of three turns of an episode; with `distills`, those of the first turn are taught."""
    rng = random.Random(0)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(rng.randrange(97) for _ in range(number))

    history, examples = tokens(9), []
    for turn in range(3):
        action, hint = tokens(5), tokens(4)
        hinted = Prompt.of([*history, *hint]) if distills and turn == 0 else None
        examples += [
            TrainingExample("policy", Prompt.of(history), tokens(rng.randint(2, 30)), 0.5, turn),
            TrainingExample("critic", Prompt.of([*history, *action]), tokens(rng.randint(3, 30)), 1.0, turn, hinted),
        ]
        history = (*history, *action, *tokens(7))
    return examples


def distributed(kind: str, model: nn.Module) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp2":
        for module in model.modules():
            if type(module).__name__.endswith("DecoderLayer"):
                fully_shard(module)
        return fully_shard(model)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(trained))[0]


def gradient_of(kind: str, parameter: nn.Parameter) -> torch.Tensor:
    """The gradient of the sum over the processes."""
    if kind == "zero3":
        return safe_get_full_grad(parameter) * WORLD_SIZE
    return (parameter.grad.full_tensor() if kind == "fsdp2" else parameter.grad) * WORLD_SIZE


def losses_of(model: nn.Module, wrapped: nn.Module, collate: NLACCollator, examples: list, distills: bool):
    """The losses, and their sum to differentiate. The target weights are not those of the model."""
    target = TargetWeights(model)
    for average in target.state_dict().values():
        average.mul_(1.2)
    teacher = (lambda: target.swapped_into(model)) if distills else None
    losses = batch_losses(wrapped, collate(examples), teacher)
    return losses, (losses * torch.tensor([1.0 + example.transition_id for example in examples])).sum()


def compare(kind: str, name: str, distills: bool = False, is_adapted: bool = False, checkpoints: bool = False) -> None:
    examples = make_examples(distills)
    plain = make_model(name, is_adapted, checkpoints)
    expected, total = losses_of(plain, plain, NLACCollator(0), examples, distills)
    total.backward()
    gradients = {name: p.grad for name, p in plain.named_parameters() if p.requires_grad}

    model = make_model(name, is_adapted, checkpoints)
    wrapped = distributed(kind, model)
    assert can_chunk_head(wrapped, model.config, ARGS) and start_sharing(wrapped, model.config, ARGS)
    own = spread_by_prefix(examples, WORLD_SIZE)[RANK]
    losses, total = losses_of(model, wrapped, NLACCollator(0, True, keeps_logits=False), own, distills)
    wrapped.backward(total) if kind == "zero3" else total.backward()
    found = gather_object([(examples.index(one), loss) for one, loss in zip(own, losses.tolist(), strict=True)])
    losses = torch.tensor([loss for _, loss in sorted(found)])
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-6)  # a divergence can be near 0
    actual = {name: gradient_of(kind, p) for name, p in model.named_parameters() if p.requires_grad}
    assert actual.keys() == gradients.keys()
    differences = torch.stack([(actual[name] - gradient).norm() for name, gradient in gradients.items()])
    size = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    assert differences.norm() < 1e-5 * size, (kind, name, differences.norm() / size)
    taught = gather_object([sum(example.teacher_prompt is not None for example in own)])
    assert not distills or min(taught) == 0 < max(taught)  # a process without any takes part nevertheless


for kind in ("ddp", "fsdp2", "zero3"):
    compare(kind, "qwen3", distills=True)
    compare(kind, "gemma3", checkpoints=True)
    compare(kind, "llama", distills=True, is_adapted=True, checkpoints=True)
    print(f"{kind} {RANK} done\n", end="", flush=True)
