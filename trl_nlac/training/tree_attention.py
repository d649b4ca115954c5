# SPDX-License-Identifier: Apache-2.0

"""Attention over token trees, as an attention implementation of transformers."""

import math
from typing import TYPE_CHECKING

import torch
from accelerate.logging import get_logger
from accelerate.utils import extract_model_from_parallel, gather_object
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig

from ..generation.prefix_cache import can_be_continued, rope_of_length
from ..method.batches import NLACCollator
from ..method.head import answer_logits
from ..method.prefix_tree import BLOCK, PrefixTree
from ..private_names import (
    FailOnRecompileLimitHit,
    flex_attention_forward,
    repeat_kv,
    sdpa_attention_forward,
    sdpa_mask,
)
from ..types import Prompt, TrainingExample
from .trial import TrialFailed, deviation, trial


if TYPE_CHECKING:
    from ..nlac_config import NLACConfig  # which requires TRL

logger = get_logger(__name__)

TREE_ATTENTION = "sdpa_with_prefix_trees"
# Types of devices on which FlexAttention computes trees, and those on which CPU kernels compute them piece by piece.
FLEX_DEVICES, PIECEWISE_DEVICES = {"cuda"}, {"cpu"}
_VARIANTS = 64  # that FlexAttention is compiled in: each layout of heads, window and precision, with gradients or not
_OF_OTHER_HEADS = ("classifier", "summary")  # dropout of heads that a causal language model has not
_WINDOW_BLOCK = 512  # queries of which a mask is written out, in layers with a sliding window

# The queries and keys of a piece of the attention, whether it is causal, and its mask if it needs one.
Piece = tuple[slice | torch.Tensor, slice, bool, torch.Tensor | None]


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    prefix_tree: PrefixTree | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """
    Attend over a [`~method.prefix_tree.PrefixTree`], which the model got as `prefix_tree`; without one this is the
    attention `"sdpa"` of transformers. Memory is linear in the number of tokens: no key or value is copied for a
    branch, and no mask covers the whole tree.

    Queries are `(B, H, N, D)`, keys and values `(B, K, N, D)`, and the output `(B, N, H, D)`, where `B` is 1 with a
    tree. `attention_mask` is used without a tree only. A window is counted in positions, as in separate sequences.
    Raise a `ValueError` if there is attention dropout. Raise a `RuntimeError` if FlexAttention would no longer be
    compiled. Where the tree `tries_gradients`, raise what the backward pass raises.
    """
    if prefix_tree is None:
        window = {} if sliding_window is None else {"sliding_window": sliding_window}
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **window, **kwargs
        )
    if dropout:
        raise ValueError(f"Attention over prefix trees has no dropout, and it is {dropout}.")
    flexes = query.device.type in FLEX_DEVICES
    if sliding_window not in prefix_tree.layouts:
        make = block_mask if flexes else pieces
        prefix_tree.layouts[sliding_window] = make(prefix_tree, sliding_window)
    layout = prefix_tree.layouts[sliding_window]
    if torch.is_autocast_enabled(query.device.type):  # as it does for SDPA: a norm may have left float32
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    compute = _flex if flexes else _by_pieces
    if not prefix_tree.tries_gradients:
        return compute(module, query, key, value, layout, scaling=scaling, **kwargs), None
    with torch.enable_grad():
        states = [values.detach().requires_grad_() for values in (query, key, value)]
        output = compute(module, *states, layout, scaling=scaling, **kwargs)
        gradients = torch.autograd.grad(output.float().square().sum(), states)
    if not all(gradient.isfinite().all() for gradient in gradients):
        raise ArithmeticError("its gradients are not finite")
    return output.detach(), None


def _by_pieces(module, query, key, value, pieces: list[Piece], scaling: float | None, **kwargs) -> torch.Tensor:
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise ValueError("On a CPU, attention over prefix trees knows neither capped scores nor attention sinks.")
    groups = query.shape[1] // key.shape[1]
    output = _PiecewiseAttention.apply(query, repeat_kv(key, groups), repeat_kv(value, groups), pieces, scaling)
    return output.transpose(1, 2).contiguous()


def _flex(*args, **kwargs) -> torch.Tensor:
    """Beyond its limit Dynamo would run FlexAttention as it is, with all scores in memory. Limits are of a thread."""
    limit = max(_VARIANTS, torch._dynamo.config.recompile_limit)
    try:
        with torch._dynamo.config.patch(recompile_limit=limit, fail_on_recompile_limit_hit=True):
            return flex_attention_forward(*args, **kwargs)[0]
    except FailOnRecompileLimitHit as error:
        raise RuntimeError(
            f"FlexAttention was compiled in {limit} variants, and without one more it needs memory quadratic in the "
            "number of tokens. Train in a new process, or on separate sequences: `trainer.shares_prefixes = False`. "
            "`TORCH_LOGS=recompiles` names the causes."
        ) from error


AttentionInterface.register(TREE_ATTENTION, attend)
AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)


def pieces(tree: PrefixTree, window: int | None = None) -> list[Piece]:
    """Cut the attention over a tree, in a `window`, into pieces; that of a query with itself comes first."""
    found: list[Piece] = []
    for part in tree.parts:
        queries, keys = slice(part.first_query, part.last_query), slice(part.first_key, part.last_key)
        depths, first, last = tree.depths[queries], int(tree.depths[keys.start]), int(tree.depths[keys.stop - 1])
        if window is None or int(depths.max()) - first < window:
            found.append((queries, keys, part.is_causal, None))
            continue
        seeing = torch.arange(queries.start, queries.stop)
        if not part.is_causal:
            seeing = seeing[depths - last < window]
        for rows in seeing.split(_WINDOW_BLOCK):
            of_rows = tree.depths[rows]
            nearest, furthest = min(last, int(of_rows.max())), max(first, int(of_rows.min()) - window + 1)
            seen = slice(keys.start + furthest - first, keys.start + nearest - first + 1)
            distances = of_rows[:, None] - tree.depths[seen][None]
            found.append((rows, seen, False, (distances >= 0) & (distances < window)))
    return found


class _PiecewiseAttention(torch.autograd.Function):
    """
    Attention of which the pieces are computed alone and merged by the logarithms of their sums. The gradient of a
    piece is that of fused attention with the output and the sum of the whole, as in ring attention.
    """

    @staticmethod
    def forward(ctx, query, key, value, pieces: list[Piece], scale: float | None):
        output = query.new_empty(query.shape, dtype=torch.float32)
        logsumexp = query.new_empty(query.shape[:-1], dtype=torch.float32)
        has_output = torch.zeros(query.shape[2], dtype=torch.bool)
        for rows, keys, is_causal, mask in pieces:
            part, part_logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[:, :, rows], key[:, :, keys], value[:, :, keys], 0.0, is_causal,
                attn_mask=_additive(mask, query), scale=scale,
            )  # fmt: skip
            if has_output[rows][0]:
                before = logsumexp[:, :, rows]
                total = torch.logaddexp(before, part_logsumexp)
                part = (
                    output[:, :, rows] * (before - total).exp()[..., None]
                    + part * (part_logsumexp - total).exp()[..., None]
                )
                part_logsumexp = total
            output[:, :, rows], logsumexp[:, :, rows], has_output[rows] = part.float(), part_logsumexp, True
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.pieces, ctx.scale = pieces, scale
        return output

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, output, logsumexp = ctx.saved_tensors
        gradients = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (query, key, value)]
        for rows, keys, is_causal, mask in ctx.pieces:
            of_piece = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gradient[:, :, rows], query[:, :, rows], key[:, :, keys], value[:, :, keys], output[:, :, rows],
                logsumexp[:, :, rows], 0.0, is_causal, attn_mask=_additive(mask, query), scale=ctx.scale,
            )  # fmt: skip
            for total, part, tokens in zip(gradients, of_piece, (rows, keys, keys), strict=True):
                total[:, :, tokens] += part
        return *(total.to(query.dtype) for total in gradients), None, None


def _additive(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    return None if mask is None else query.new_zeros(mask.shape).masked_fill_(~mask, -math.inf)


def block_mask(tree: PrefixTree, window: int | None = None) -> BlockMask:
    """
    Make FlexAttention's mask of a tree, in which a token sees `window` positions, itself included. Whether a block is
    empty or full is read from the smallest and largest values in it, in memory quadratic in the number of blocks only.
    """
    number = len(tree)
    padding = -number % BLOCK
    depths, ends = tree.depths, tree.ends
    lowest_end, highest_end = (_by_block(ends, padding, largest) for largest in (False, True))
    lowest_depth, highest_depth = (_by_block(depths, padding, largest) for largest in (False, True))
    blocks = torch.arange(len(lowest_end), device=depths.device)
    first, last = blocks * BLOCK, (blocks * BLOCK + BLOCK - 1).clamp(max=number - 1)
    is_before = blocks[None, :] < blocks[:, None]  # (query blocks, key blocks)
    is_seen = (blocks[None, :] <= blocks[:, None]) & (highest_end[None, :] > first[:, None])
    is_full = is_before & (lowest_end[None, :] > last[:, None])
    if window is not None:
        is_seen &= lowest_depth[:, None] - highest_depth[None, :] < window
        is_full &= highest_depth[:, None] - lowest_depth[None, :] < window

    def sees(batch, head, q, k):
        is_ancestor = (k <= q) & (q < ends[k])
        return is_ancestor if window is None else is_ancestor & (depths[q] - depths[k] < window)

    partial, full = _indices(is_seen & ~is_full), _indices(is_full)
    return BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(number, number))


def _by_block(values: torch.Tensor, padding: int, largest: bool) -> torch.Tensor:
    """Reduce the values of tokens to the smallest or largest of each block."""
    values = torch.cat([values, values[-1:].expand(padding)]).view(-1, BLOCK)
    return values.amax(1) if largest else values.amin(1)


def _indices(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of chosen key blocks of each query block, and their indices first."""
    order = chosen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return chosen.sum(1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]


def start_sharing(model: nn.Module, config: PreTrainedConfig, args: "NLACConfig") -> bool:
    """
    Let a model read trees, if it computes on a small one what it computes on separate sequences, and its attention has
    gradients there: the attention implementation of its configuration changes. Otherwise the model stays as it is, and
    a warning names the reason. All processes decide alike.
    """
    config = config.get_text_config()
    reason = _unfit(model, config, args)
    if not reason:
        torch._dynamo.reset_code(flex_attention.__code__)  # what reached a limit before would never be compiled again
        config._attn_implementation = TREE_ATTENTION
        (reason, *_) = [*filter(None, gather_object([_difference(model, config, args)])), ""]
        if reason:
            config._attn_implementation = "sdpa"
    if reason:
        logger.warning(
            f"Prefixes that training samples share are computed for each of them: {reason}. Losses are the same, and "
            "steps take longer; `trainer.shares_prefixes = False` skips the trial."
        )
    return not reason


def _unfit(model: nn.Module, config: PreTrainedConfig, args: "NLACConfig") -> str:
    """Explain why a model cannot read trees, as far as it shows without a trial."""
    values = config.to_dict()
    if args.torch_compile:
        return "the model is compiled (`torch_compile`)"
    if config._attn_implementation not in ("sdpa", TREE_ATTENTION):  # the latter after another trainer
        return f"`attn_implementation` is '{config._attn_implementation}', and trees need 'sdpa'"
    if args.device.type not in FLEX_DEVICES | PIECEWISE_DEVICES:
        return f"there is no attention over trees for the device '{args.device.type}'"
    dropouts = [name for name, value in values.items() if "drop" in name and isinstance(value, float) and value > 0]
    dropouts = [name for name in dropouts if not name.startswith(_OF_OTHER_HEADS)]
    if dropouts:
        return f"the model is trained with dropout (`{dropouts[0]}` in its configuration)"
    others = set(values.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if others:
        return f"the model has layers of the type '{min(others)}'"
    if rope := rope_of_length(config):
        return (
            f"the rotary factors of the model (`rope_type='{rope}'`) follow the longest text of a batch, on which its "
            "answers and losses depend"
        )
    whole = extract_model_from_parallel(model)
    return "" if can_be_continued(whole) else "keys and values of a prefix are not all that the model needs to read on"


def _difference(model: nn.Module, config: PreTrainedConfig, args: "NLACConfig") -> str:
    """Explain how the model's output on a tree differs from that on separate sequences; empty if it does not."""
    generator = torch.Generator().manual_seed(0)

    def tokens(number: int) -> list[int]:
        return torch.randint(min(config.vocab_size, 1000), (number,), generator=generator).tolist()

    trunk = tokens(24)
    ends = [(cut, tuple(tokens(4))) for cut in (8, 8, 16, 24, 24)]
    collators = [NLACCollator(0, shares, device=args.device) for shares in (False, True)]
    batches = [
        collate([TrainingExample("policy", Prompt.of(trunk[:cut]), end) for cut, end in ends]).tokens
        for collate in collators
    ]
    batches[1].inputs["prefix_tree"].tries_gradients = True
    aux_losses = [] if args.router_aux_loss_coef else None
    try:
        separate, shared = trial(model, lambda: [answer_logits(model, batch, aux_losses) for batch in batches])
    except TrialFailed as failed:
        return f"the model cannot read a tree ({failed}), though another version of PyTorch may have what is missing"
    windows = set(batches[1].inputs["prefix_tree"].layouts)
    if windows != _windows(config):
        return f"its layers have the windows {windows}, and its configuration says {_windows(config)}"
    limit = 1e-3 if separate.dtype == torch.float32 and not (args.bf16 or args.fp16) else 5e-2
    if deviates := deviation(shared, separate, limit):
        return f"its output on a tree {deviates}"
    if aux_losses and not torch.isclose(*aux_losses, rtol=limit):
        return "the loss that balances its experts (`router_aux_loss_coef`) differs on a tree"
    return ""


def _windows(config: PreTrainedConfig) -> set[int | None]:
    """Return the sliding windows of the layers; `None` for those that see everything."""
    values = config.to_dict()
    window = values.get("sliding_window") if values.get("use_sliding_window", True) else None
    kinds = set(values.get("layer_types") or ["sliding_attention"])
    return {window if kind == "sliding_attention" else None for kind in kinds}
