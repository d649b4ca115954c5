# SPDX-License-Identifier: Apache-2.0

"""Losses, gradients, answers, scores and target weights on a device, against the CPU. Needs torch and transformers."""

import warnings

import torch
from common import TINY, main, make_examples, options_of_run
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from trl_nlac.generation.generator import Sampling
from trl_nlac.generation.transformers import TransformersGenerator
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses
from trl_nlac.method.target_weights import TargetWeights
from trl_nlac.training.tree_attention import FLEX_DEVICES, start_sharing


PROMPTS = [[5, 6, 7, 8], [5, 6, 9], [5, 6, 7, 10, 11], [12]]


def losses_and_gradient(model: PreTrainedModel, shares: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    batch = NLACCollator(0, shares, keeps_logits=False, device=model.device)(make_examples(3, 12, 9, 900))
    losses = batch_losses(model, batch)
    losses.sum().backward()
    gradient = torch.cat([p.grad.flatten().float().cpu() for p in model.parameters()])
    return losses.detach().float().cpu(), gradient


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def generate(model: PreTrainedModel, sampling: Sampling, ends: bool = True) -> tuple[list, list[float]]:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    eos = tokenizer.eos_token_id if ends else 10**6
    generator = TransformersGenerator(None, tokenizer, [eos], batch_size=3)
    with generator.session(model):
        said = generator.generate(PROMPTS, sampling, [1, 2, 3, 4])
        longer = [prompt + answer.token_ids for prompt, answer in zip(PROMPTS, said, strict=True)]
        again = generator.generate(longer, sampling, [5, 6, 7, 8])
        scores = generator.score(longer, [answer.token_ids for answer in again])
    return [answer.token_ids for answer in said + again], scores


def syncs_of_token(model: PreTrainedModel) -> float | None:
    """Count how often the host waits for a GPU, for each token that is generated."""
    if model.device.type != "cuda":
        return None
    counts = []
    for number in (10, 60):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                generate(model, Sampling(number), ends=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(warning.message) for warning in caught))
    return (counts[1] - counts[0]) / (4 * 50)  # two batches, twice


def run(device: torch.device, small: bool) -> dict:
    found = {}
    expected_model = AutoModelForCausalLM.from_pretrained(TINY, attn_implementation="sdpa")
    model = AutoModelForCausalLM.from_pretrained(TINY, attn_implementation="sdpa").to(device)
    expected = losses_and_gradient(expected_model)
    own = losses_and_gradient(model)
    found["losses, float32"], found["gradient, float32"] = map(difference, own, expected)
    assert max(found.values()) < 1e-4, found
    half = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.bfloat16, attn_implementation="sdpa").to(device)
    found["losses, bfloat16"] = difference(losses_and_gradient(half)[0], expected[0])
    assert found["losses, bfloat16"] < 0.03, found
    if device.type in FLEX_DEVICES | {"cpu"}:
        assert start_sharing(model, model.config, options_of_run(device)), "the model cannot read trees"
        trees = losses_and_gradient(model, shares=True)
        found["losses of trees"], found["gradient of trees"] = map(difference, trees, own)
        assert max(found["losses of trees"], found["gradient of trees"]) < 1e-4, found
    for name, sampling in (("greedy", Sampling(24, temperature=0.0)), ("sampled", Sampling(24))):
        (tokens, scores), (other, others) = generate(model, sampling), generate(expected_model, sampling)
        found[f"answers that differ, {name}"] = sum(a != b for a, b in zip(tokens, other, strict=True))
        if tokens == other:
            assert torch.tensor(scores).allclose(torch.tensor(others), rtol=1e-3, atol=1e-3), (scores, others)
    # Rounding can move a sampled token over the border between two.
    assert found["answers that differ, greedy"] == 0 and found["answers that differ, sampled"] <= 1, found
    syncs = syncs_of_token(model)
    if syncs is not None:
        found["synchronisations for each token"] = syncs
        assert syncs <= 2, found
    target = TargetWeights(model, 0.5)
    before = {name: values.to("cpu", copy=True) for name, values in target.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)
    target.update(model)
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    with target.swapped_into(model):
        for name, p in model.named_parameters():
            assert torch.allclose(p.detach().cpu(), before[name] + 0.125, rtol=0, atol=1e-6), name
    assert all(torch.equal(p, own[name]) for name, p in model.named_parameters())
    assert target.distance(model) > 0
    return found


if __name__ == "__main__":
    main(run)
