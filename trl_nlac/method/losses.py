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
from trl.trainer.utils import selective_log_softmax

from ..types import LOSSES


def batch_logits(model: nn.Module, inputs: dict[str, torch.Tensor], prefix: str = "") -> torch.Tensor:
    """Compute the logits of a batch, `(B, T, V)`; with `prefix="teacher_"`, of the teacher's side of it."""
    input_ids, attention_mask = inputs[f"{prefix}input_ids"], inputs[f"{prefix}attention_mask"]
    return model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def sequence_nll(logits: torch.Tensor, input_ids: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """
    Compute the negative log-likelihood of each completion, averaged over its tokens, in nats.

    Both losses of the method are of this form: L1 on the sampled Bellman target (the cross-entropy part of equation 5)
    and L2 on the refined action (equation 6).

    Args:
        logits (`torch.Tensor` of shape `(B, T, V)`):
            Output of the model for `input_ids`.
        input_ids (`torch.Tensor` of shape `(B, T)`):
            Prompts and completions.
        completion_mask (`torch.Tensor` of shape `(B, T)`):
            1 on the tokens of the completions.

    Returns:
        `torch.Tensor` of shape `(B,)` and dtype `float32`.
    """
    return _means(-token_logps(logits, input_ids, completion_mask), completion_mask[:, 1:].bool())


def token_logps(logits: torch.Tensor, input_ids: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """Compute the log-probability of each token of all completions, one row after the other: `(N,)`, in float32."""
    mask = completion_mask[:, 1:].bool()
    # Prompts are most of the tokens: in float32, their logits would be most of the memory.
    return selective_log_softmax(logits[:, :-1][mask].float(), input_ids[:, 1:][mask])


def sequence_kl(
    logits: torch.Tensor,
    completion_mask: torch.Tensor,
    teacher_logits: torch.Tensor,
    teacher_completion_mask: torch.Tensor,
) -> torch.Tensor:
    """
    Compute the Kullback-Leibler divergence of each completion under a model from the same completion under a teacher:
    exact over the vocabulary at every token, averaged over the tokens, in nats.

    With the Bellman backup as the teacher, which has read the next observation, this is equation 5 along a sampled
    target. [`sequence_nll`] estimates its cross-entropy part from the sampled tokens alone.

    Args:
        logits (`torch.Tensor` of shape `(B, T, V)`):
            Output of the model.
        completion_mask (`torch.Tensor` of shape `(B, T)`):
            1 on the tokens of the completions.
        teacher_logits (`torch.Tensor` of shape `(B, S, V)`):
            Output of the teacher, for other prompts with the same completions.
        teacher_completion_mask (`torch.Tensor` of shape `(B, S)`):
            1 on the tokens of the same completions there.

    Returns:
        `torch.Tensor` of shape `(B,)` and dtype `float32`.
    """
    mask, teacher_mask = completion_mask[:, 1:].bool(), teacher_completion_mask[:, 1:].bool()
    logps = F.log_softmax(logits[:, :-1][mask].float(), dim=-1)  # (N, V), N tokens of all completions
    teacher_logps = F.log_softmax(teacher_logits[:, :-1][teacher_mask].float(), dim=-1)  # (N, V)
    return _means((teacher_logps.exp() * (teacher_logps - logps)).sum(-1), mask)


def _means(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average `values` `(N,)` of the true elements of `mask` `(B, T)` over each row: `(B,)`, 0 where it has none."""
    rows = mask.nonzero()[:, 0]  # (N,)
    return values.new_zeros(len(mask)).index_add(0, rows, values) / mask.sum(1).clamp(min=1)


def anchored_rows(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Find the examples of a batch that are kept near the initial weights, the policy's: `(B,)`, boolean."""
    return (inputs["loss_ids"] == LOSSES.index("policy")) & (inputs["weights"] > 0)


def batch_losses(
    model: nn.Module, inputs: dict[str, torch.Tensor], teacher: Callable[[], AbstractContextManager] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Compute the loss of each example of a batch: the negative log-likelihood of its completion, averaged over the
    tokens. On the tokens of `taught_mask`, critic examples with a `teacher` have in its place the divergence from the
    model with the weights that it has within `teacher()`.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the losses, `(B,)`; and for the policy's examples, if `inputs` has the
        `reference_logps` of the initial weights, an estimate of the divergence from these, averaged over the tokens of
        a completion, `(B,)`, otherwise 0.
    """
    is_taught = "teacher_input_ids" in inputs
    if teacher is not None:
        model.eval()
        with torch.no_grad(), teacher():
            # Where weights are sharded, processes run the model together, even one whose targets were all dropped.
            teacher_logits = batch_logits(model, inputs, "teacher_" if is_taught else "")  # (C, S, V)
        model.train()
    logits = batch_logits(model, inputs)  # (B, T, V)
    mask = inputs["completion_mask"][:, 1:].bool()
    logps = token_logps(logits, inputs["input_ids"], inputs["completion_mask"])  # (N,), N tokens of all completions
    losses = _means(-logps, mask)
    divergences = torch.zeros_like(losses)
    if "reference_logps" in inputs:
        is_anchored = anchored_rows(inputs)[mask.nonzero()[:, 0]]  # (N,)
        reference = torch.where(is_anchored, inputs["reference_logps"][mask], logps.detach())
        # As in GRPO: never negative, and right on average over tokens that the model samples.
        divergences = _means((reference - logps).exp() - (reference - logps) - 1, mask)
    if is_taught:
        rows = inputs["loss_ids"] == LOSSES.index("critic")
        whole, taught = inputs["completion_mask"][rows], inputs["taught_mask"][rows]
        logits = logits[rows]  # (C, T, V)
        distilled = sequence_kl(logits, taught, teacher_logits, inputs["teacher_completion_mask"])  # (C,)
        distilled = distilled.clamp(min=0)
        if (whole != taught).any():
            others = sequence_nll(logits, inputs["input_ids"][rows], whole - taught)  # (C,)
            share = taught.sum(1) / whole.sum(1)
            distilled = share * distilled + (1 - share) * others
        losses = losses.masked_scatter(rows, distilled)
    return losses, divergences
