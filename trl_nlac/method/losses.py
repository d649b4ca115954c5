# SPDX-License-Identifier: Apache-2.0

"""The losses, as pure functions of tensors."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from .batches import MicroBatch
from .head import answer_states, answer_values


Divergence: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def token_logps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """
    Compute the log-probability of each label, in float32.

    Args:
        logits (`torch.Tensor` of shape `(M, V)`):
            Output of the model.
        labels (`torch.Tensor` of shape `(M,)`):
            Tokens.

    Returns:
        `torch.Tensor` of shape `(M,)` and dtype `float32`.
    """
    return -F.cross_entropy(logits.float(), labels, reduction="none")


def token_divergences(logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """
    Compute the Kullback-Leibler divergence of the model from a teacher at every token, exact over the vocabulary, in
    nats.

    With the refinement policy as the teacher, which has read a critique, this is what a distilled policy learns by.

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
    """With two tensors of the size of the logits beside them, where autograd would keep seven."""

    @staticmethod
    def forward(ctx, logits, teacher_logits):
        ctx.save_for_backward(logits, teacher_logits)
        logps, teacher_logps = (values.float().log_softmax(-1) for values in (logits, teacher_logits))
        differences = logps.neg_().add_(teacher_logps)
        return torch.linalg.vecdot(teacher_logps.exp_(), differences)

    @staticmethod
    def backward(ctx, gradient):
        logits, teacher_logits = ctx.saved_tensors
        differences = logits.float().softmax(-1).sub_(teacher_logits.float().softmax(-1))
        return differences.mul_(gradient[:, None]).to(logits.dtype), None


def row_means(values: torch.Tensor, rows: torch.Tensor, number: int) -> torch.Tensor:
    """Average the values of tokens, `(M,)`, over each of `number` examples: `(B,)`, 0 where it has none."""
    counts = values.new_zeros(number).index_add(0, rows, torch.ones_like(values))
    return values.new_zeros(number).index_add(0, rows, values) / counts.clamp(min=1)


def batch_losses(
    model: nn.Module,
    batch: MicroBatch,
    teacher: Callable[[], AbstractContextManager] | None = None,
    aux_losses: list[torch.Tensor] | None = None,
    divergence: Divergence = token_divergences,
) -> torch.Tensor:
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
        aux_losses (`list[torch.Tensor]`, *optional*):
            Gets the loss that balances the experts of a model with a mixture of them.
        divergence (`Callable`, *optional*, defaults to [`token_divergences`]):
            Divergence of the model from the teacher at every token, of the output of both.

    Returns:
        `torch.Tensor` of shape `(B,)`.
    """
    rows, number = batch.tokens.rows, len(batch.examples)
    if teacher is not None:
        model.eval()
        with teacher():
            # Where weights are sharded, processes run the model together, even one whose targets were all dropped.
            taught_by = answer_states(model, batch.teacher or batch.tokens)
        model.train()
    numbers = batch.is_taught.cumsum(0) - 1  # of the taught tokens

    def value(logits: torch.Tensor, chunk: slice) -> torch.Tensor:
        labels, is_taught = batch.tokens.labels[chunk], batch.is_taught[chunk]
        if batch.teacher is None:
            return -token_logps(logits, labels)
        divergences = divergence(logits[is_taught], taught_by.logits(numbers[chunk][is_taught]))
        others = -token_logps(logits[~is_taught], labels[~is_taught])
        values = torch.zeros(len(labels), device=labels.device)
        return values.masked_scatter(is_taught, divergences).masked_scatter(~is_taught, others)

    values = answer_values(model, batch.tokens, value, aux_losses)  # (M,)
    losses = row_means(values, rows, number)
    return losses if batch.teacher is None else losses.clamp(min=0)  # a divergence of 0 can be rounded to less
