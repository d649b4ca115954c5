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


TaughtLoss: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def token_logps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute the log-probability of each label in float32, `(M,)`, of logits `(M, V)`."""
    return -F.cross_entropy(logits.float(), labels, reduction="none")


def token_divergences(logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """
    Compute the Kullback-Leibler divergence of the model from a teacher at every token, exact over the vocabulary, in
    nats and float32, `(M,)`, of logits `(M, V)`. The teacher's are for other prompts with the same tokens, and get no
    gradient.

    With the refinement policy as the teacher, which has read a critique, this is what a distilled policy learns by.
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


def reverse_divergences(logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """
    Compute the divergence from the model to the teacher at every token, KL(model || teacher), in nats. The arguments
    are those of [`token_divergences`], which computes KL(teacher || model). Over several teachers that one is least at
    their mean, and this one where all of them agree.
    """
    return _ReverseDivergences.apply(logits, teacher_logits)


class _ReverseDivergences(torch.autograd.Function):
    """As lean as [`_Divergences`]."""

    @staticmethod
    def _compared(logits, teacher_logits) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's probabilities, and the differences of log-probabilities."""
        logps = logits.float().log_softmax(-1)
        differences = logps - teacher_logits.float().log_softmax(-1)
        return logps.exp_(), differences

    @staticmethod
    def forward(ctx, logits, teacher_logits):
        values = torch.linalg.vecdot(*_ReverseDivergences._compared(logits, teacher_logits))
        ctx.save_for_backward(logits, teacher_logits, values)
        return values

    @staticmethod
    def backward(ctx, gradient):
        logits, teacher_logits, values = ctx.saved_tensors
        probabilities, differences = _ReverseDivergences._compared(logits, teacher_logits)
        differences.sub_(values[:, None]).mul_(probabilities)
        return differences.mul_(gradient[:, None]).to(logits.dtype), None


def distilled(logits: torch.Tensor, labels: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """Compute what a distilled policy learns by, [`token_divergences`]; the tokens themselves do not count."""
    return token_divergences(logits, teacher_logits)


def anchored(logits: torch.Tensor, labels: torch.Tensor, teacher_logits: torch.Tensor, kl_coef: float) -> torch.Tensor:
    """
    Compute what a policy learns by that is kept near the initial one: the negative log-likelihood of each token, and
    `kl_coef` times the exact KL(policy || initial policy) there.
    """
    return kl_coef * reverse_divergences(logits, teacher_logits) - token_logps(logits, labels)


def row_means(values: torch.Tensor, rows: torch.Tensor, number: int) -> torch.Tensor:
    """Average the values of tokens, `(M,)`, over each of `number` examples: `(B,)`, 0 where it has none."""
    counts = values.new_zeros(number).index_add(0, rows, torch.ones_like(values))
    return values.new_zeros(number).index_add(0, rows, values) / counts.clamp(min=1)


def batch_losses(
    model: nn.Module,
    batch: MicroBatch,
    teacher: Callable[[], AbstractContextManager] | None = None,
    aux_losses: list[torch.Tensor] | None = None,
    taught_loss: TaughtLoss = distilled,
) -> torch.Tensor:
    """
    Compute the loss of each example of a batch, `(B,)`: the negative log-likelihood of its completion, averaged over
    the tokens, in nats. Both losses of the method are of this form: L1 on the sampled Bellman target (the
    cross-entropy part of equation 5) and L2 on the refined action (equation 6). With a `teacher`, examples that have a
    prompt of the teacher's have `taught_loss` in its place, of the model's logits, the tokens, and the logits of the
    model within `teacher()`. `aux_losses` gets the loss that balances the experts of a model with a mixture of them.
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
        taught = taught_loss(logits[is_taught], labels[is_taught], taught_by.logits(numbers[chunk][is_taught]))
        others = -token_logps(logits[~is_taught], labels[~is_taught])
        values = torch.zeros(len(labels), device=labels.device)
        return values.masked_scatter(is_taught, taught).masked_scatter(~is_taught, others)

    values = answer_values(model, batch.tokens, value, aux_losses)  # (M,)
    losses = row_means(values, rows, number)
    return losses if batch.teacher is None else losses.clamp(min=0)  # a divergence of 0 can be rounded to less
