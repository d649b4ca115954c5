# SPDX-License-Identifier: Apache-2.0

"""Passes of a limited number of tokens, whose gradients add up to that of a micro-batch."""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import gather_object
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..method.batches import NOTHING, NLACCollator, arrange_by_length, arrange_by_prefix, fill_batches
from ..types import TrainingExample


logger = get_logger(__name__)


def split_into_passes(
    examples: list[TrainingExample], max_tokens: int | None, collate: NLACCollator
) -> list[list[TrainingExample]]:
    """
    Split a micro-batch of this process into as few passes of at most `max_tokens` as the process with most tokens
    needs: the same number on all of them, because sharded weights are gathered together. On each process its passes
    are as equal as its examples allow. `collate` says what counts: the tokens of a tree, or of padded sequences.
    """
    if max_tokens is None:
        return [examples]
    examples, size = (arrange_by_prefix if collate.shares_prefixes else arrange_by_length)(examples)

    def fill(limit: int) -> list[int]:
        return fill_batches(len(examples), size, limit)

    own = max(example.num_tokens for example in examples)
    number, longest = map(max, zip(*gather_object([(len(fill(max_tokens)), own)]), strict=True))
    if longest > max_tokens:
        logger.warning_once(
            f"A training example has {longest} tokens, more than `max_tokens_per_batch={max_tokens}`, and is computed "
            "alone. If there is not enough memory for it, lower `max_prompt_length` or `max_completion_length`."
        )
    # The smallest limit with which that many passes suffice.
    limit = bisect_left(range(max(max_tokens, own)), True, key=lambda limit: len(fill(limit)) <= number)
    ends = fill(limit)
    passes = [examples[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return passes + [[NOTHING]] * (number - len(passes))


@contextmanager
def accumulating(accelerator: Accelerator, model: nn.Module, is_last: bool) -> Iterator[None]:
    """Let a pass only add to the gradient, unless it is the last one: no step of DeepSpeed, no reduction of DDP."""
    if is_last:
        yield
        return
    state, syncs = accelerator.gradient_state, accelerator.sync_gradients
    state._set_sync_gradients(False)
    try:
        with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext():
            yield
    finally:
        state._set_sync_gradients(syncs)
