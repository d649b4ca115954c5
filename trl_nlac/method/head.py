# SPDX-License-Identifier: Apache-2.0

"""What a model makes of the tokens of answers, with the logits of a few tokens at a time in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import torch
from accelerate.utils import extract_model_from_parallel
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from .batches import TokenBatch


_CHUNK = 256  # tokens of which logits are in memory at the same time

Value = Callable[[torch.Tensor, slice], torch.Tensor]  # of the logits of a chunk of tokens: (n, V) to (n,)


def answer_values(
    model: nn.Module, tokens: TokenBatch, value: Value, aux_losses: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """
    Compute a value of the model's distribution at each token of the completions, `(M,)`. `value` makes the values of a
    chunk of its logits, `(n, V)`, and of its place among the `M` tokens, a slice. `aux_losses` gets the loss that
    balances the experts of a model with a mixture of them.

    The output layer of the model, its head, gets the hidden states of these tokens alone, a chunk at a time, and the
    logits of a chunk are computed again in the backward pass. This happens where the model calls its head, so that
    whatever holds for the head, as weights that are gathered, adapters or a bias, holds here. Where `tokens` keep the
    model's own logits, only these are read in chunks.
    """
    kept: list[torch.Tensor] = []

    def finish(rows: torch.Tensor, head: nn.Module) -> torch.Tensor:
        kept.append(_in_chunks(rows, head, value))
        return kept[-1]

    returned = run_to_head(model, tokens, finish, aux_losses)
    values = kept[-1]
    if returned.dtype == values.dtype:
        return returned
    # FSDP2 rounds what a model returns to its mixed precision, in which sums of many values are wrong. The gradient
    # still goes the way of what was returned.
    return values.detach() + (returned - returned.detach())


def _in_chunks(rows: torch.Tensor, head: nn.Module, value: Value) -> torch.Tensor:
    def compute(part: torch.Tensor, chunk: slice) -> torch.Tensor:
        return value(head(part), chunk)

    parts = rows.split(_CHUNK)
    chunks = [slice(i * _CHUNK, (i + 1) * _CHUNK) for i in range(len(parts))]
    if len(parts) == 1 or not torch.is_grad_enabled():
        return torch.cat([compute(part, chunk) for part, chunk in zip(parts, chunks, strict=True)])
    return torch.cat(
        [checkpoint(compute, part, chunk, use_reentrant=False) for part, chunk in zip(parts, chunks, strict=True)]
    )


@dataclass(frozen=True)
class AnswerStates:
    """What a model computed for the `M` tokens of the completions, and the head that it had then."""

    rows: torch.Tensor  # hidden states, `(M, H)`
    head: nn.Module
    weights: dict[str, torch.Tensor]  # trained ones of the head, copied: others may stand in their place later

    @torch.no_grad()
    def logits(self, chosen: torch.Tensor) -> torch.Tensor:
        """
        Compute the logits of chosen tokens, `(n,)` to `(n, V)`. Where weights are sharded, they are there only while
        the model calls its head: within the `value` of [`answer_values`]. There is no dropout, also where the model is
        in training by then.
        """
        modes = [(module, module.training) for module in self.head.modules()]
        self.head.eval()
        try:
            return functional_call(self.head, self.weights, (self.rows[chosen],))
        finally:
            for module, mode in modes:
                module.training = mode


@torch.no_grad()
def answer_states(model: nn.Module, tokens: TokenBatch) -> AnswerStates:
    """Keep what is needed for the logits of all tokens of the completions."""
    kept: list[AnswerStates] = []

    def keep(rows: torch.Tensor, head: nn.Module) -> torch.Tensor:
        weights = {name: p.detach().clone() for name, p in head.named_parameters() if p.requires_grad}
        kept.append(AnswerStates(rows, head, weights))
        return rows.new_zeros(len(rows))

    run_to_head(model, tokens, keep)
    return kept[0]


class _Head(nn.Module):
    """Calls a module without its hooks, which belong to the module's place in the model."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.call = module.forward

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.call(rows)


def answer_logits(model: nn.Module, tokens: TokenBatch, aux_losses: list[torch.Tensor] | None = None) -> torch.Tensor:
    """Compute the logits of all tokens of the completions, `(M, V)`, of a batch that keeps the model's own."""
    return tokens.select(_run(model, tokens, aux_losses))


def run_to_head(
    model: nn.Module,
    tokens: TokenBatch,
    finish: Callable[[torch.Tensor, nn.Module], torch.Tensor],
    aux_losses: list[torch.Tensor] | None = None,
) -> torch.Tensor:
    """
    Run a model, with its end replaced: `finish` makes `(M,)` values of hidden states, `(M, H)`, and the head. Returns
    what the model returns of them, in the precision in which it returns logits.
    """
    if tokens.keeps_logits:
        return finish(answer_logits(model, tokens, aux_losses), nn.Identity())
    module = output_layer(model)
    head = _Head(module)

    def forward(states: torch.Tensor) -> torch.Tensor:
        return finish(tokens.select(states), head)[None, :, None]

    with patch.object(module, "forward", forward):
        return _run(model, tokens, aux_losses).flatten()


def _run(model: nn.Module, tokens: TokenBatch, aux_losses: list[torch.Tensor] | None) -> torch.Tensor:
    options = {} if aux_losses is None else {"output_router_logits": True}
    outputs = model(**tokens.inputs, use_cache=False, **options)
    if aux_losses is not None:
        aux_losses.append(outputs.aux_loss)
    return outputs.logits


def output_layer(model: nn.Module) -> nn.Module:
    """Return the module that makes logits of hidden states, the head."""
    return extract_model_from_parallel(model, keep_torch_compile=False).get_output_embeddings()
