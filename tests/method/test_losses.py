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

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses, sequence_kl, sequence_nll
from trl_nlac.types import Prompt, TrainingExample


class TestLosses:
    def test_sequence_nll(self):
        torch.manual_seed(0)
        logits, input_ids = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
        mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 1, 0]])
        nll = sequence_nll(logits, input_ids, mask)
        logps = logits.log_softmax(-1)
        first = -np.mean([logps[0, t - 1, input_ids[0, t]].item() for t in (2, 3, 4)])
        assert nll[0].item() == pytest.approx(first, rel=1e-5)
        assert nll[1].item() == pytest.approx(-logps[1, 2, input_ids[1, 3]].item(), rel=1e-5)

    def test_only_completions_are_trained(self):
        logits = torch.randn(1, 6, 7, requires_grad=True)
        sequence_nll(logits, torch.randint(7, (1, 6)), torch.tensor([[0, 0, 0, 1, 1, 0]])).sum().backward()
        assert logits.grad.abs().sum(-1)[0].gt(0).tolist() == [False, False, True, True, False, False]

    def test_sequence_kl(self):
        torch.manual_seed(0)
        logits, teacher = torch.randn(2, 6, 7, requires_grad=True), torch.randn(2, 8, 7)
        mask = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 0, 0]])
        teacher_mask = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0, 0, 0]])
        divergence = sequence_kl(logits, mask, teacher, teacher_mask)
        p, q = teacher.log_softmax(-1), logits.log_softmax(-1)
        kl = [(p[0, s - 1].exp() * (p[0, s - 1] - q[0, t - 1])).sum().item() for t, s in ((2, 4), (3, 5), (4, 6))]
        assert divergence[0].item() == pytest.approx(np.mean(kl), rel=1e-5)
        assert divergence[1].item() == pytest.approx((p[1, 0].exp() * (p[1, 0] - q[1, 2])).sum().item(), rel=1e-5)
        # Of the same contexts it is zero, and so is its gradient; on average its gradient is that of the likelihood.
        same = sequence_kl(logits, mask, logits.detach(), mask)
        assert same.abs().max() < 1e-6
        tokens = torch.multinomial(teacher[0, 4].softmax(-1), 200_000, replacement=True)
        likelihood = -(logits[0, 2].log_softmax(-1)[tokens]).mean()
        exact = (p[0, 4].exp() * (p[0, 4] - logits[0, 2].log_softmax(-1))).sum()
        gradients = [torch.autograd.grad(loss, logits)[0][0, 2] for loss in (likelihood, exact)]
        torch.testing.assert_close(*gradients, atol=5e-3, rtol=0)


class Bigram(nn.Module):
    """The logits of a token depend on the one before it, and on the first one of the sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(9, 9, 9))

    def forward(self, input_ids, attention_mask, use_cache):
        return SimpleNamespace(logits=self.table[input_ids[:, :1], input_ids])


class TestBatchLosses:
    def test_a_completion_is_distilled_from_where_its_teacher_starts(self):
        """Before that, in a rewritten chain of thought, it is likely tokens alone that are learned."""
        completions = [(3, 4, 5, 6), (7, 8)]
        examples = [
            TrainingExample("critic", Prompt.of([1]), completions[0], 1.0, 0, Prompt.of([2, 2]), teacher_start=3),
            TrainingExample("critic", Prompt.of([1]), completions[1], 1.0, 1, Prompt.of([2, 2])),
            TrainingExample("policy", Prompt.of([1, 1]), (4, 4)),
        ]
        model = Bigram()
        inputs = NLACCollator(0)(examples)
        losses, _ = batch_losses(model, inputs, teacher=nullcontext)
        q, p = model.table[1].log_softmax(-1), model.table[2].log_softmax(-1)

        def divergence(previous):
            return (p[previous].exp() * (p[previous] - q[previous])).sum()

        thought = -(q[1, 3] + q[3, 4] + q[4, 5])
        own = (divergence(5) + thought) / 4
        # The first token follows other prompts.
        first = (p[2].exp() * (p[2] - q[1])).sum()
        expected = torch.stack([own, (first + divergence(7)) / 2, -(q[1, 4] + q[4, 4]) / 2])
        torch.testing.assert_close(losses, expected)
        # No distribution of the teacher reaches a token of the thought.
        with torch.no_grad():
            model.table[2, :5] += torch.randn(5, 9)
        assert batch_losses(model, inputs, teacher=nullcontext)[0][0] == losses[0]
