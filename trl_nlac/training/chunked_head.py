# SPDX-License-Identifier: Apache-2.0

"""Whether the output layer of a model can be called for a few tokens at a time."""

import torch
from accelerate.logging import get_logger
from accelerate.utils import gather_object
from torch import nn
from transformers import PreTrainedConfig

from ..method.batches import NLACCollator
from ..method.head import answer_values, output_layer, run_to_head
from ..method.losses import token_logps
from ..nlac_config import NLACConfig
from ..shards import has_gathered_weights
from ..types import Prompt, TrainingExample
from .trial import TrialFailed, deviation, trial


logger = get_logger(__name__)


def can_chunk_head(model: nn.Module, config: PreTrainedConfig, args: NLACConfig) -> bool:
    """Whether the output layer can be called in chunks. If not, a warning says why. All processes decide alike."""
    (reason, *_) = [*filter(None, gather_object([_unfit(model, args) or _difference(model, config, args)])), ""]
    if reason:
        logger.warning(
            "The logits of all answers of a micro-batch are in memory at the same time, which matters where they are "
            f"long and the vocabulary is large: {reason}."
        )
    return not reason


def _unfit(model: nn.Module, args: NLACConfig) -> str:
    """Explain why the output layer cannot be called alone, as far as can be seen."""
    if args.torch_compile:
        return "the model is compiled (`torch_compile`)"
    head = output_layer(model)
    if head is None:
        return "the model names no output layer"
    if has_gathered_weights(head) and any(True for _ in head.children()):
        # Each call of a part would gather its weights, and processes have different numbers of chunks.
        return f"its output layer, of sharded weights, is made of several ({type(head).__name__})"
    return ""


def _difference(model: nn.Module, config: PreTrainedConfig, args: NLACConfig) -> str:
    """Explain how what the output layer gives differs from what the model gives; empty if it does not."""
    vocabulary = min(config.get_text_config().vocab_size, 1000)
    sequences = torch.randint(vocabulary, (8, 12), generator=torch.Generator().manual_seed(0)).tolist()
    examples = [
        TrainingExample("policy", Prompt.of(ids[:length]), tuple(ids[length:]))
        for length, ids in enumerate(sequences, start=1)
    ]
    whole, states = (
        NLACCollator(0, keeps_logits=keeps, device=args.device)(examples).tokens for keeps in (True, False)
    )
    marks = torch.linspace(-99, 99, len(states.labels), device=args.device)
    found: list[torch.Tensor] = []

    def finish(rows: torch.Tensor, head: nn.Module) -> torch.Tensor:
        found.append(token_logps(head(rows), states.labels))
        return marks

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        expected = answer_values(model, whole, lambda logits, chunk: token_logps(logits, whole.labels[chunk]))
        return expected, run_to_head(model, states, finish)

    try:
        expected, returned = trial(model, run)
    except TrialFailed as failed:
        return f"its output layer cannot be called alone ({failed})"
    if not found or returned.shape != marks.shape or (returned - marks).abs().max() > 1:
        return "the model does something to the output of its output layer"
    deviates = deviation(torch.cat(found), expected, limit=5e-2 if args.bf16 or args.fp16 else 1e-3)
    return deviates and f"what its output layer gives {deviates}"
