# SPDX-License-Identifier: Apache-2.0

import random
import re
from importlib import import_module
from unittest import mock

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)
from transformers.integrations.flex_attention import WrappedFlexAttention

from trl_nlac import NLACConfig
from trl_nlac.method import prefix_tree
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses
from trl_nlac.method.prefix_tree import PrefixTree
from trl_nlac.training import tree_attention
from trl_nlac.training.tree_attention import TREE_ATTENTION, block_mask, pieces, start_sharing
from trl_nlac.types import Prompt, TrainingExample


SMALL = dict(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16
)
CONFIGS = {
    "llama": LlamaConfig(**SMALL, num_hidden_layers=3),
    "qwen3": Qwen3Config(**SMALL, num_hidden_layers=3),
    "gemma3": Gemma3TextConfig(**SMALL, num_hidden_layers=6, sliding_window=8),
    "mistral": MistralConfig(**SMALL, num_hidden_layers=2, sliding_window=24),
}


def make_args(tmp_path, bf16: bool = False, **options) -> NLACConfig:
    return NLACConfig(output_dir=str(tmp_path), use_cpu=True, bf16=bf16, report_to="none", **options)


def make_model(config: PreTrainedConfig):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def episode_examples(seed: int = 0) -> list[TrainingExample]:
    """A critic's, a policy's and a backup's sample of each turn of two episodes of a task."""
    rng = random.Random(seed)

    def tokens(number: int) -> list[int]:
        return [rng.randrange(97) for _ in range(number)]

    task, examples = tokens(7), []
    for _ in range(2):
        history = [*task, *tokens(3)]
        for turn in range(4):
            action, question = tokens(5), tokens(4)
            answers = [tuple(tokens(rng.randint(1, 30))) for _ in range(3)]
            examples += [
                TrainingExample("policy", Prompt.of(history), answers[0], 0.5, turn),
                TrainingExample("critic", Prompt.of([*history, *action, *question]), answers[1], 1.0, turn),
                TrainingExample("critic", Prompt.of([*history, *action, *question]), answers[2], 2.0, turn),
            ]
            history = [*history, *action, *tokens(11)]
    return examples


def losses_and_gradients(model, examples: list[TrainingExample], shares: bool) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    losses = batch_losses(model, NLACCollator(0, shares)(examples))
    (losses * torch.arange(1, len(losses) + 1)).sum().backward()
    return losses.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CONFIGS)
def test_losses_and_gradients_are_those_of_separate_sequences(tmp_path, name, seed):
    model, examples = make_model(CONFIGS[name]), episode_examples(seed)
    separate = losses_and_gradients(model, examples, False)
    assert start_sharing(model, model.config, make_args(tmp_path))
    shared = losses_and_gradients(model, examples, True)
    for one, other in zip(separate, shared, strict=True):
        assert (one - other).norm() < 1e-5 * one.norm()


@pytest.mark.parametrize("kind", ["autocast", "weights"])
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_bfloat16_is_as_exact_as_for_separate_sequences(tmp_path, name, kind):
    """With autocast, norms leave queries and keys in float32 and values in bfloat16."""
    model, examples = make_model(CONFIGS[name]), episode_examples()
    exact = losses_and_gradients(model, examples, False)
    args = NLACConfig(output_dir=str(tmp_path), use_cpu=True, bf16=True, report_to="none")
    if kind == "weights":
        model.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        assert start_sharing(model, model.config, args)
        separate, shared = (losses_and_gradients(model, examples, shares) for shares in (False, True))
    for reference, one, other in zip(exact, separate, shared, strict=True):
        assert (other - reference).norm() < 1.5 * (one - reference).norm() < 0.1 * reference.norm()


def test_experts_are_balanced_as_for_separate_sequences(tmp_path):
    """A token counts as often as it stands in a sequence, and padding does not, also with the head in chunks."""
    config = Qwen3MoeConfig(**SMALL, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2)
    model, examples, aux_losses = make_model(config), episode_examples(), []
    assert start_sharing(model, model.config, make_args(tmp_path, router_aux_loss_coef=0.1))
    for shares, keeps_logits in ((False, True), (False, False), (True, True), (True, False)):
        batch_losses(model, NLACCollator(0, shares, keeps_logits)(examples), aux_losses=aux_losses)
    lengths, sums, counts = 0, 0, 0
    for example in examples:
        ids = torch.tensor([[*example.prompt.ids, *example.completion_ids]])
        for logits in model(ids, output_router_logits=True).router_logits:
            probabilities = logits.softmax(-1)
            sums, lengths = sums + probabilities.sum(0), lengths + len(logits)
            counts = counts + probabilities.topk(2).indices.flatten().bincount(minlength=4)
    expected = 4 * (sums / lengths * counts / lengths).sum().item()
    assert [loss.item() for loss in aux_losses] == pytest.approx([expected] * 4, rel=1e-5)


@pytest.fixture(params=["end", "depth", "part"])
def wrong_trees(request, monkeypatch):
    right = PrefixTree.of

    def wrong(sequences):
        tree = right(sequences)
        if request.param == "depth":
            tree.depths[9:] += 1
        elif request.param == "part":
            tree.parts = tree.parts[:-1]
        else:  # a branch sees the one before it
            first = next(part for part in tree.parts if not part.is_causal)
            tree.parts = tuple(p._replace(last_key=p.last_key + 1) if p is first else p for p in tree.parts)
        return tree

    monkeypatch.setattr(prefix_tree.PrefixTree, "of", wrong)


def test_a_wrong_tree_is_noticed(tmp_path, wrong_trees, caplog):
    model = make_model(CONFIGS["llama"])
    assert not start_sharing(model, model.config, make_args(tmp_path))
    assert "its output on a tree differs by" in caplog.text
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("error", [IndexError("no branch 1\nsee above"), KeyError("prefix_tree"), AssertionError()])
def test_a_model_that_breaks_on_trees_reads_none(tmp_path, monkeypatch, caplog, error):
    model = make_model(CONFIGS["llama"])
    forward = model.forward

    def breaks(*args, prefix_tree=None, **kwargs):
        if prefix_tree is not None:
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", breaks)
    assert not start_sharing(model.train(), model.config, make_args(tmp_path)) and model.training
    assert f"the model cannot read a tree ({type(error).__name__}: " in caplog.text and "see above" not in caplog.text
    assert model.config._attn_implementation == "sdpa"


MOE = dict(num_local_experts=2, num_experts=2, num_experts_per_tok=1)
UNFIT = {
    "another attention": (LlamaConfig(**SMALL, num_hidden_layers=1), "eager", "`attn_implementation` is 'eager'"),
    "dropout": (LlamaConfig(**SMALL, num_hidden_layers=1, attention_dropout=0.1), "sdpa", "`attention_dropout`"),
    "sinks": (GptOssConfig(**SMALL, **MOE, num_hidden_layers=2), "sdpa", "attention sinks"),
    "capped scores": (Gemma2Config(**SMALL, num_hidden_layers=2), "sdpa", "`softcap`|capped scores"),
    "a state space beside attention": (
        FalconH1Config(**SMALL, num_hidden_layers=1, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16),
        "sdpa",
        "keys and values of a prefix",
    ),
    "rotary factors of the batch": (
        LlamaConfig(
            **SMALL, num_hidden_layers=1, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
        ),
        "sdpa",
        "`rope_type='dynamic'`",
    ),
    "linear attention": (Qwen3NextConfig(**SMALL, **MOE, num_hidden_layers=4), "sdpa", "type 'linear_attention'"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_other_models_are_told_by_name(tmp_path, caplog, kind):
    """In bfloat16, in which a trial alone would take a small difference for rounding."""
    config, attention, reason = UNFIT[kind]
    model = AutoModelForCausalLM.from_config(config)
    model.config._attn_implementation = attention
    assert not start_sharing(model, model.config, make_args(tmp_path, bf16="beside" in kind))
    (record,) = [r for r in caplog.records if "Prefixes that training samples share" in r.message]
    assert re.search(reason, record.message)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("window", [None, 8, 600])
def test_masks_of_flex_attention(window):
    rng = random.Random(0)
    trunk = [rng.randrange(97) for _ in range(500)]
    sequences = [trunk[:cut] + [rng.randrange(97) for _ in range(40)] for cut in (10, 90, 90, 300, 499)]
    tree = PrefixTree.of([trunk, *sequences, sequences[3] + trunk, trunk[100:]])
    number = len(tree)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, number, 16) for _ in range(3))
    q, k = torch.arange(number)[:, None], torch.arange(number)[None]
    mask = (k <= q) & (q < tree.ends[None])
    if window is not None:
        mask &= tree.depths[:, None] - tree.depths[None] < window
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    by_pieces = tree_attention._PiecewiseAttention.apply(query, key, value, pieces(tree, window), 0.25)
    torch.testing.assert_close(by_pieces, expected)
    blocks = block_mask(tree, window)
    torch.testing.assert_close(flex_attention(query, key, value, block_mask=blocks), expected)
    exact = create_block_mask(blocks.mask_mod, None, None, number, number, device="cpu").to_dense() > 0
    assert (blocks.to_dense() > 0)[exact].all() and blocks.sparsity() > 30


@pytest.fixture
def compiles(monkeypatch) -> list[str]:
    """FlexAttention computes trees of whole blocks on the CPU, and what Dynamo compiles of it is listed."""
    found: list[str] = []

    def backend(graph, inputs):
        found.append(str(inputs))
        return graph.forward

    whole = PrefixTree.of
    monkeypatch.setattr(flex_module, "_validate_device", lambda *tensors: None)  # which refuses gradients on a CPU
    monkeypatch.setattr(flex_module, "_WARNINGS_SHOWN", set())
    monkeypatch.setattr(PrefixTree, "of", lambda sequences: whole(sequences).in_blocks(0))
    monkeypatch.setattr(tree_attention, "FLEX_DEVICES", {"cpu"})
    monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda self: torch.compile(flex_attention, backend=backend))
    yield found
    torch._dynamo.reset()


def steps(model, sizes: tuple[int, ...] = (20, 300, 520)) -> None:
    for size in sizes:
        trunk = [5 + i % 80 for i in range(size)]
        examples = [TrainingExample("policy", Prompt.of(trunk[:cut]), (3, 4, cut % 97)) for cut in (size // 2, size)]
        assert all(g.isfinite().all() for g in losses_and_gradients(model, examples, True))


def refuse(*args, **kwargs):
    raise NotImplementedError("no backward pass for heads of 256")


def test_flex_attention_without_a_backward_pass_is_found_before_training(tmp_path, compiles, monkeypatch, caplog):
    """As on cards that lack the memory for it."""
    operators = import_module("torch._higher_order_ops.flex_attention")  # the operator in it has the same name
    monkeypatch.setattr(operators, "flex_attention_backward", refuse)
    model = make_model(CONFIGS["llama"])
    assert not start_sharing(model, model.config, make_args(tmp_path))
    (warning,) = [record.message for record in caplog.records if record.name == tree_attention.__name__]
    assert "(NotImplementedError: no backward pass for heads of 256), though another version of PyTorch" in warning
    assert "`trainer.shares_prefixes = False`" in warning and model.config._attn_implementation == "sdpa"
    assert all(gradient.isfinite().all() for gradient in losses_and_gradients(model, episode_examples(), False))


def test_gradients_of_a_tree_that_are_not_finite(tmp_path, monkeypatch, caplog):
    """All is found in the attention: the trial leaves the model without gradients."""
    whole = tree_attention._PiecewiseAttention.backward
    wrong = staticmethod(lambda ctx, gradient: whole(ctx, gradient * float("nan")))
    monkeypatch.setattr(tree_attention._PiecewiseAttention, "backward", wrong)
    model = make_model(CONFIGS["llama"])
    assert not start_sharing(model, model.config, make_args(tmp_path))
    assert "its gradients are not finite" in caplog.text
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.filterwarnings("error:flex_attention called without torch.compile")
def test_flex_attention_stays_compiled(tmp_path, compiles):
    """Layers with and without a window under reentrant checkpointing; one model after another in one process."""
    for heads in (1, 2, 4):
        before = len(compiles)
        config = {**CONFIGS["gemma3"].to_dict(), "num_attention_heads": 2 * heads, "num_key_value_heads": heads}
        config |= {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
        model = make_model(Gemma3TextConfig(**config)).train()
        model.gradient_checkpointing_enable({"use_reentrant": True})
        model.enable_input_require_grads()
        assert start_sharing(model, model.config, make_args(tmp_path))
        steps(model)
        assert 0 < len(compiles) - before <= 8  # two windows, with gradients or not, of two blocks and of any number


@pytest.mark.filterwarnings("error:flex_attention called without torch.compile")
def test_flex_attention_that_is_not_compiled_is_an_error(tmp_path, compiles, monkeypatch):
    """Its memory would be quadratic. What another model's attention has used up before is given back."""
    with torch._dynamo.config.patch(recompile_limit=1), pytest.warns(match="without torch.compile"):
        for heads in (1, 2):
            tensor = torch.randn(1, heads, 130, 16)
            WrappedFlexAttention(False)()(tensor, tensor, tensor)
    model = make_model(CONFIGS["llama"])
    assert start_sharing(model, model.config, make_args(tmp_path))
    monkeypatch.setattr(tree_attention, "_VARIANTS", 1)
    with torch._dynamo.config.patch(recompile_limit=1):
        with pytest.raises(RuntimeError, match="compiled in 1 variants.*`trainer.shares_prefixes = False`"):
            steps(model)


def test_trees_of_whole_blocks():
    tree = PrefixTree.of([[0, 1, 2], [0, 0, 3]]).in_blocks(0)
    assert [len(PrefixTree.of([range(n)]).in_blocks(0)) for n in (1, 256, 257, 384)] == [256, 256, 384, 384]
    assert [tree.input_ids[path].tolist() for path in tree.paths] == [[0, 1, 2], [0, 0, 3]]
    model, examples = make_model(CONFIGS["gemma3"]), episode_examples()
    model.config._attn_implementation = TREE_ATTENTION
    found = [losses_and_gradients(model, examples, True)]
    whole = PrefixTree.of
    with mock.patch.object(PrefixTree, "of", lambda sequences: whole(sequences).in_blocks(0)):
        found.append(losses_and_gradients(model, examples, True))
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 1e-5 * one.norm()


def test_a_second_trainer_of_the_same_model_shares_as_well(tmp_path):
    model = make_model(CONFIGS["qwen3"])
    assert start_sharing(model, model.config, make_args(tmp_path))
    assert start_sharing(model, model.config, make_args(tmp_path))


def test_generation_is_that_of_sdpa(tmp_path):
    model = make_model(CONFIGS["gemma3"])
    ids = torch.arange(2, 40).reshape(2, 19)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    expected = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=20, do_sample=False)
    assert start_sharing(model, model.config, make_args(tmp_path))
    assert model.config._attn_implementation == TREE_ATTENTION
    assert model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=20, do_sample=False).equal(expected)
    model.save_pretrained(tmp_path / "saved")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "saved").config._attn_implementation == "sdpa"
