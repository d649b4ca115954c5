# SPDX-License-Identifier: Apache-2.0

from contextlib import contextmanager

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, Qwen3Config

from trl_nlac import NLACConfig
from trl_nlac.method import head
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.head import answer_states
from trl_nlac.method.losses import batch_losses
from trl_nlac.training.chunked_head import can_chunk_head
from trl_nlac.types import Prompt, TrainingExample


VOCABULARY = 101
SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
    num_hidden_layers=2,
)  # fmt: skip
LORA = {"r": 4, "init_lora_weights": False, "task_type": "CAUSAL_LM"}


def make_args(tmp_path, **options) -> NLACConfig:
    return NLACConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", **options)


def make_model(kind: str):
    torch.manual_seed(0)
    if kind == "tied":
        return AutoModelForCausalLM.from_config(Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True))
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL))
    if kind == "lora":
        return get_peft_model(model, LoraConfig(**LORA, target_modules="all-linear"))
    if kind == "lora of the head":
        return get_peft_model(model, LoraConfig(**LORA, target_modules=["q_proj", "lm_head"]))
    if kind == "saved head":
        return get_peft_model(model, LoraConfig(**LORA, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    return model


def make_examples(is_taught: bool = False) -> list[TrainingExample]:
    torch.manual_seed(0)
    sequences = torch.randint(VOCABULARY, (6, 40)).tolist()
    trunk, *others = sequences
    teachers = [Prompt.of(others[0]), Prompt.of(others[2][:9])] if is_taught else [None, None]
    return [
        TrainingExample("critic", Prompt.of(trunk[:30]), tuple(others[0][:17]), 1.0, 0, teachers[0]),
        TrainingExample("policy", Prompt.of(trunk[:20]), tuple(others[1][:9]), 0.5, 0),
        TrainingExample("critic", Prompt.of(trunk[:30]), tuple(others[2][:11]), 2.0, 1, teachers[1]),
        TrainingExample("policy", Prompt.of(trunk[:3]), tuple(others[3][:14])),
        TrainingExample("policy", Prompt.of(others[4][:7]), tuple(others[4][7:9]), 1.0, 1),
    ]


class LargestLogits(TorchDispatchMode):
    """Notes of how many tokens there are logits, or anything else for each word, in one tensor, without weights."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outputs = function(*args, **(kwargs or {}))
        for output in outputs if isinstance(outputs, tuple | list) else [outputs]:
            is_tensor = isinstance(output, torch.Tensor) and output.shape[-1:] == (VOCABULARY,)
            if is_tensor and output.shape[0] not in (SMALL["hidden_size"], LORA["r"]):
                self.number = max(self.number, output.numel() // VOCABULARY)
        return outputs


def compute(model, keeps_logits: bool, distills: bool = True) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return losses, the gradient, and the number of tokens that had logits at the same time."""

    @contextmanager
    def teacher():
        """The model with other weights, as target weights."""
        own = {name: p.detach().clone() for name, p in model.named_parameters()}
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p += torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.05
        yield
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(own[name])

    batch = NLACCollator(0, keeps_logits=keeps_logits)(make_examples(distills))
    model.zero_grad()
    with LargestLogits() as largest:
        losses = batch_losses(model, batch, teacher if distills else None)
        (losses * torch.arange(1, 6)).sum().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.requires_grad]
    return losses.detach(), torch.cat(gradients), largest.number


@pytest.mark.parametrize("distills", [False, True])
@pytest.mark.parametrize("kind", ["whole", "tied", "lora", "lora of the head", "saved head"])
def test_losses_and_gradients_are_those_of_the_models_logits(tmp_path, monkeypatch, kind, distills):
    """With logits of no more than seven tokens at a time, in the forward and in the backward pass."""
    monkeypatch.setattr(head, "_CHUNK", 7)
    model = make_model(kind)
    *expected, number = compute(model, keeps_logits=True, distills=distills)
    assert number >= 53  # all tokens of the answers
    assert can_chunk_head(model, model.config, make_args(tmp_path))
    *chunked, number = compute(model, keeps_logits=False, distills=distills)
    assert number == 7
    for one, other in zip(chunked, expected, strict=True):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_the_model_is_as_before(monkeypatch):
    model, batch = make_model("whole"), NLACCollator(0, keeps_logits=False)(make_examples())
    expected = model(torch.arange(9)[None]).logits
    batch_losses(model, batch)
    monkeypatch.setattr(head, "_in_chunks", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        batch_losses(model, batch)
    assert model(torch.arange(9)[None]).logits.equal(expected) and "forward" not in vars(model.lm_head)


def test_models_that_change_their_logits_keep_them(tmp_path, caplog):
    model = AutoModelForCausalLM.from_config(Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=30.0))
    assert not can_chunk_head(model, model.config, make_args(tmp_path))
    assert "the model does something to the output of its output layer" in caplog.text


def test_a_model_that_breaks_without_its_head_keeps_its_logits(tmp_path, monkeypatch, caplog):
    model = make_model("whole")
    forward = model.forward

    def breaks(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        assert outputs.logits.shape[-1] == model.config.vocab_size
        return outputs

    monkeypatch.setattr(model, "forward", breaks)
    assert not can_chunk_head(model, model.config, make_args(tmp_path))
    assert "its output layer cannot be called alone (AssertionError: " in caplog.text


def test_a_compiled_model_keeps_its_logits(tmp_path, caplog):
    model = make_model("whole")
    assert not can_chunk_head(model, model.config, make_args(tmp_path, torch_compile=True))
    assert "`torch_compile`" in caplog.text


def test_a_model_that_rounds_what_it_returns_does_not_round_the_losses():
    """As under FSDP2 with mixed precision. The gradient goes the way of what was returned."""
    model, batch = make_model("whole"), NLACCollator(0, keeps_logits=False)(make_examples())
    exact = batch_losses(model, batch)
    exact.sum().backward()
    gradient = model.lm_head.weight.grad.clone()
    model.zero_grad()

    def rounded(module, args, output):
        output.logits = output.logits.bfloat16()
        return output

    model.register_forward_hook(rounded)
    losses = batch_losses(model, batch)
    losses.sum().backward()
    assert losses.dtype == torch.float32 and losses.equal(exact)
    assert (model.lm_head.weight.grad - gradient).norm() < 0.01 * gradient.norm()


@pytest.mark.parametrize("keeps_logits", [True, False])
def test_a_teacher_has_no_dropout(keeps_logits):
    adapter = LoraConfig(**LORA, target_modules=["lm_head"], lora_dropout=0.5)
    model = get_peft_model(make_model("whole"), adapter)
    example = TrainingExample("critic", Prompt.of([1, 2, 3]), (4, 5, 6, 7), teacher_prompt=Prompt.of([1, 2, 3]))
    batch = NLACCollator(0, keeps_logits=keeps_logits)([example])
    states = answer_states(model.eval(), batch.teacher)
    exact = states.logits(torch.arange(4))
    model.train()
    assert all(states.logits(torch.arange(4)).equal(exact) for _ in range(3))
    assert all(module.training for module in model.modules())
