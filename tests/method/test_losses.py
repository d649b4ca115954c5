# SPDX-License-Identifier: Apache-2.0

from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from trl.experimental.sdpo.loss_utils import compute_full_logit_self_distillation_loss

from trl_nlac.method import head
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import (
    anchored,
    batch_losses,
    reverse_divergences,
    row_means,
    token_divergences,
    token_logps,
)
from trl_nlac.types import Prompt, TrainingExample


class TestTokens:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_log_probabilities(self, dtype):
        torch.manual_seed(0)
        logits, labels = torch.randn(8, 7, dtype=dtype, requires_grad=True), torch.randint(7, (8,))
        logps = token_logps(logits, labels)
        expected = logits.float().log_softmax(-1)[torch.arange(8), labels]
        torch.testing.assert_close(logps, expected)
        assert logps.dtype == torch.float32
        weights = torch.randn(8)
        gradients = [torch.autograd.grad((weights * values).sum(), logits)[0] for values in (logps, expected)]
        torch.testing.assert_close(*gradients)

    def test_divergences(self):
        torch.manual_seed(0)
        logits, teacher = torch.randn(8, 7, requires_grad=True), torch.randn(8, 7)
        p, q = teacher.log_softmax(-1), logits.log_softmax(-1)
        expected = (p.exp() * (p - q)).sum(-1)
        divergences = token_divergences(logits, teacher)
        torch.testing.assert_close(divergences, expected)
        of_trl = compute_full_logit_self_distillation_loss(logits, teacher, distillation_alpha=0.0)
        torch.testing.assert_close(divergences, of_trl)
        weights = torch.randn(8)
        gradients = [
            torch.autograd.grad((weights * v).sum(), logits, retain_graph=True)[0] for v in (divergences, expected)
        ]
        torch.testing.assert_close(*gradients)
        reverse = (q.exp() * (q - p)).sum(-1)
        torch.testing.assert_close(reverse_divergences(logits, teacher), reverse)
        of_trl = compute_full_logit_self_distillation_loss(logits, teacher, distillation_alpha=1.0)
        torch.testing.assert_close(reverse, of_trl)
        assert reverse_divergences(logits, logits.detach()).abs().max() < 1e-6
        # Of the same contexts it is zero, and so is its gradient; on average its gradient is that of the likelihood.
        assert token_divergences(logits, logits.detach()).abs().max() < 1e-6
        tokens = torch.multinomial(teacher[0].softmax(-1), 200_000, replacement=True)
        likelihood = -q[0, tokens].mean()
        gradients = [torch.autograd.grad(loss, logits)[0][0] for loss in (likelihood, divergences[0])]
        torch.testing.assert_close(*gradients, atol=5e-3, rtol=0)

    def test_means_over_the_tokens_of_an_example(self):
        means = row_means(torch.tensor([1.0, 2.0, 3.0, 5.0]), torch.tensor([0, 0, 2, 2]), 3)
        assert means.tolist() == [1.5, 0.0, 4.0]


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(9, 9, 9))

    def forward(self, input_ids, attention_mask, logits_to_keep, use_cache):
        return SimpleNamespace(logits=self.table[input_ids[:, :1], input_ids][:, logits_to_keep])


class TestBatchLosses:
    @pytest.fixture(params=[2, 10**6], autouse=True)
    def small_chunks(self, request, monkeypatch):
        """Two tokens at a time, or all at once."""
        monkeypatch.setattr(head, "_CHUNK", request.param)

    def test_only_completions_are_trained(self):
        model = Bigram()
        examples = [
            TrainingExample("policy", Prompt.of([1, 5]), (3, 4)),
            TrainingExample("policy", Prompt.of([2]), (6,)),
            TrainingExample("critic", Prompt.of([1, 7, 7, 7]), (8, 8, 2)),
        ]
        batch = NLACCollator(0)(examples)
        assert batch.tokens.inputs["attention_mask"].sum(1).tolist() == [4, 2, 7]
        losses = batch_losses(model, batch)
        q = model.table.log_softmax(-1)
        third = -(q[1, 7, 8] + q[1, 8, 8] + q[1, 8, 2]) / 3
        torch.testing.assert_close(losses, torch.stack([-(q[1, 5, 3] + q[1, 3, 4]) / 2, -q[2, 2, 6], third]))
        losses.sum().backward()
        trained = model.table.grad.abs().sum(-1).nonzero().tolist()
        assert trained == [[1, 3], [1, 5], [1, 7], [1, 8], [2, 2]]

    def test_a_completion_with_a_teacher_is_distilled(self):
        examples = [
            TrainingExample("policy", Prompt.of([1]), (7, 8), 1.0, 1, Prompt.of([2, 2])),
            TrainingExample("critic", Prompt.of([1, 1]), (4, 4)),
        ]
        model = Bigram()
        inputs = NLACCollator(0)(examples)
        modes = []

        @contextmanager
        def teacher():
            modes.append(model.training)
            yield

        losses = batch_losses(model, inputs, teacher=teacher)
        assert modes == [False] and model.training  # without dropout it teaches, with dropout it learns
        q, p = model.table[1].log_softmax(-1), model.table[2].log_softmax(-1)
        # The first token follows other prompts.
        first, second = ((p[i].exp() * (p[i] - q[j])).sum() for i, j in ((2, 1), (7, 7)))
        expected = torch.stack([(first + second) / 2, -(q[1, 4] + q[4, 4]) / 2])
        torch.testing.assert_close(losses, expected)

    def test_a_divergence_that_is_rounded_to_less_than_zero_is_zero(self):
        inputs = NLACCollator(0)([TrainingExample("policy", Prompt.of([1]), (3, 4), 1.0, 0, Prompt.of([2]))])

        def rounded(logits, labels, teacher_logits):
            return torch.full((len(logits),), -1e-8)

        assert batch_losses(Bigram(), inputs, nullcontext, taught_loss=rounded).tolist() == [0.0]

    def test_a_policy_is_kept_near_the_initial_one(self):
        model, initial = Bigram(), torch.randn(9, 9, 9, generator=torch.Generator().manual_seed(1))

        @contextmanager
        def teacher():
            own = model.table.data
            model.table.data = initial
            yield
            model.table.data = own

        state = Prompt.of([1, 5])
        inputs = NLACCollator(0)([TrainingExample("policy", state, (3, 4), 1.0, 0, state)])
        losses = batch_losses(model, inputs, teacher, taught_loss=partial(anchored, kl_coef=0.5))
        q, p = model.table[1].log_softmax(-1), initial[1].log_softmax(-1)
        rows = [(5, 3), (3, 4)]
        expected = sum(-q[i, j] + 0.5 * (q[i].exp() * (q[i] - p[i])).sum() for i, j in rows) / 2
        torch.testing.assert_close(losses, expected[None])
        gradients = [torch.autograd.grad(loss.sum(), model.table)[0] for loss in (losses, expected)]
        torch.testing.assert_close(*gradients)
