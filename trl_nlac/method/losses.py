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

"""The losses, as pure functions of tensors."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn import functional as F

from .batches import MicroBatch, TokenBatch


_CHUNK = 2**22  # logits that are in float32 at the same time


def answer_logits(model: nn.Module, tokens: TokenBatch) -> torch.Tensor:
    """Compute the logits of the tokens of all completions, `(M, V)`; those of prompts would be most of the memory."""
    logits = model(**tokens.inputs, use_cache=False).logits.flatten(0, 1)
    return logits if tokens.places is None else logits[tokens.places]


def token_logps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """
    Compute the log-probability of each label, in float32, without a copy of all logits in float32.

    Args:
        logits (`torch.Tensor` of shape `(M, V)`):
            Output of the model.
        labels (`torch.Tensor` of shape `(M,)`):
            Tokens.

    Returns:
        `torch.Tensor` of shape `(M,)` and dtype `float32`.
    """
    return _LogProbabilities.apply(logits, labels)


class _LogProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels):
        sums = torch.cat([part.float().logsumexp(-1) for part in _parts(logits)])  # (M,)
        ctx.save_for_backward(logits, labels, sums)
        return logits.gather(1, labels[:, None])[:, 0].float() - sums

    @staticmethod
    def backward(ctx, gradient):
        logits, labels, sums = ctx.saved_tensors
        gradients = torch.empty_like(logits)
        for part, of_part, total, label, own in zip(
            *map(_parts, (gradients, logits)),
            *(_like_parts(logits, of) for of in (sums, labels, gradient)),
            strict=True,
        ):
            probabilities = (of_part.float() - total[:, None]).exp_()
            probabilities.mul_(-own[:, None]).scatter_add_(1, label[:, None], own[:, None])
            part.copy_(probabilities)
        return gradients, None


def token_divergences(logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """
    Compute the Kullback-Leibler divergence of the model from a teacher at every token, exact over the vocabulary, in
    nats.

    With the Bellman backup as the teacher, which has read the next observation, this is equation 5 along a sampled
    target. The negative log-likelihood estimates its cross-entropy part from the sampled tokens alone.

    Args:
        logits (`torch.Tensor` of shape `(M, V)`):
            Output of the model.
        teacher_logits (`torch.Tensor` of shape `(M, V)`):
            Output of the teacher, for other prompts with the same tokens. It gets no gradient.

    Returns:
        `torch.Tensor` of shape `(M,)` and dtype `float32`.
    """
    return _Divergences.apply(logits, teacher_logits)


class _Divergences(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, teacher_logits):
        ctx.save_for_backward(logits, teacher_logits)
        values = []
        for own, of_teacher in zip(_parts(logits), _parts(teacher_logits), strict=True):
            logps, teacher_logps = (F.log_softmax(part.float(), dim=-1) for part in (own, of_teacher))
            values.append((teacher_logps.exp() * (teacher_logps - logps)).sum(-1))
        return torch.cat(values)

    @staticmethod
    def backward(ctx, gradient):
        logits, teacher_logits = ctx.saved_tensors
        gradients = torch.empty_like(logits)
        for part, own, of_teacher, factor in zip(
            *map(_parts, (gradients, logits, teacher_logits)), _like_parts(logits, gradient), strict=True
        ):
            part.copy_((own.float().softmax(-1) - of_teacher.float().softmax(-1)) * factor[:, None])
        return gradients, None


def _parts(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return _like_parts(logits, logits)


def _like_parts(logits: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Split values of the same tokens as `logits` into parts of at most `_CHUNK` logits."""
    return values.split(max(1, _CHUNK // logits.shape[1]))


def row_means(values: torch.Tensor, rows: torch.Tensor, number: int) -> torch.Tensor:
    """Average the values of tokens, `(M,)`, over each of `number` examples: `(B,)`, 0 where it has none."""
    counts = values.new_zeros(number).index_add(0, rows, torch.ones_like(values))
    return values.new_zeros(number).index_add(0, rows, values) / counts.clamp(min=1)


def batch_losses(
    model: nn.Module,
    batch: MicroBatch,
    teacher: Callable[[], AbstractContextManager] | None = None,
    reference_logps: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Compute the loss of each example of a batch: the negative log-likelihood of its completion, averaged over the
    tokens, in nats. Both losses of the method are of this form: L1 on the sampled Bellman target (the cross-entropy
    part of equation 5) and L2 on the refined action (equation 6). With a `teacher`, taught tokens have in its place
    the divergence from the model with the weights that it has within `teacher()`.

    Args:
        model (`nn.Module`):
            The model.
        batch ([`~method.batches.MicroBatch`]):
            The batch.
        teacher (`Callable`, *optional*):
            Makes a context in which the model has the teacher's weights.
        reference_logps (`torch.Tensor`, *optional*):
            Log-probabilities of the tokens of `batch.anchored` under the initial weights.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the losses, `(B,)`; and with `reference_logps` an estimate of the
        divergence of the policy's examples from the initial weights, averaged over the tokens of a completion, `(B,)`,
        otherwise 0.
    """
    rows, number = batch.tokens.rows, len(batch.examples)
    if teacher is not None:
        model.eval()
        with torch.no_grad(), teacher():
            # Where weights are sharded, processes run the model together, even one whose targets were all dropped.
            teacher_logits = answer_logits(model, batch.teacher or batch.tokens)
        model.train()
    logits = answer_logits(model, batch.tokens)  # (M, V)
    logps = token_logps(logits, batch.tokens.labels)  # (M,)
    values = -logps
    if batch.teacher is not None:
        divergences = token_divergences(logits[batch.is_taught], teacher_logits)
        values = values.masked_scatter(batch.is_taught, divergences)
    losses = row_means(values, rows, number)
    if batch.teacher is not None:
        losses = losses.clamp(min=0)  # a divergence of 0 can be rounded to less
    if reference_logps is None:
        return losses, torch.zeros_like(losses)
    is_anchored = batch.is_anchored[rows]
    # As in GRPO: never negative, and right on average over tokens that the model samples.
    differences = logps.detach().masked_scatter(is_anchored, reference_logps[: is_anchored.sum()]) - logps
    return losses, row_means(differences.exp() - differences - 1, rows, number)
