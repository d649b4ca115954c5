# SPDX-License-Identifier: Apache-2.0

"""Reading sequences with a model: each prefix once, as long as its weights do not change."""

import inspect
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel, is_peft_model
from torch import nn
from transformers import PreTrainedTokenizerBase

from .prefix_cache import PrefixCache, Reading


# A forward pass of its own must save this many tokens, or they are read with the others.
PASS_TOKENS = 64


@dataclass(eq=False)
class Reader:
    """
    Read sequences with a model whose weights do not change.

    A batch is read with left padding and without gaps, because positions and sliding windows are counted in columns:
    of every sequence the same number of last tokens, after what is known. Without `prefixes`, which keep what was
    read, every sequence is read whole. With `reads_ahead`, parts of a batch can be read before, in forward passes of
    their own: not where processes need each other in every pass, so that all must make the same number of them.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    prefixes: PrefixCache | None = None
    reads_ahead: bool = True

    def __post_init__(self):
        plain = extract_model_from_parallel(self.model, keep_torch_compile=False)  # a compiled one takes anything
        plain = plain.get_base_model() if is_peft_model(plain) else plain
        self._supported = inspect.signature(plain.forward).parameters
        self._cache = "cache" if "cache" in self._supported else "past_key_values"  # the name in earlier versions

    def begin(self, readings: list[Reading]) -> dict[str, Any]:
        """Begin a batch. Return the arguments of `generate`: whole sequences, and a cache of their first columns."""
        if self.prefixes is not None:
            self.prefixes.start_batch()
        return self._inputs(readings)

    def end(self, readings: list[Reading], inputs: dict[str, Any]) -> None:
        """Keep what was read since [`begin`]. Readings can have grown by the tokens that were generated."""
        if self.prefixes is not None:
            self.prefixes.keep(readings, inputs[self._cache])

    def read(self, readings: list[Reading]) -> torch.Tensor:
        """Read a batch. Returns the logits of the last tokens, `(B, N, V)`, for the largest `num_last` N."""
        if self.prefixes is not None:
            self.prefixes.start_batch()
        return self._read(readings)

    def _inputs(self, readings: list[Reading]) -> dict[str, Any]:
        """Read what is better read before, then make the inputs of a batch."""
        sequences = {"input_ids": [reading.token_ids for reading in readings]}
        inputs = self.tokenizer.pad(sequences, padding_side="left", return_tensors="pt").to(self.model.device)
        width = num_new = inputs["input_ids"].shape[1]
        for reading in readings:
            reading.start = width - len(reading.token_ids)
        inputs = dict(inputs)
        if self.prefixes is not None:
            self.prefixes.find(readings)
            if self.reads_ahead:
                self._read_ahead(readings)
            num_new = max(reading.num_unread for reading in readings)
            inputs[self._cache] = self.prefixes.load(readings, width - num_new)
        for reading in readings:
            reading.count(num_new)
        return inputs

    def _read(self, readings: list[Reading]) -> torch.Tensor:
        inputs = self._inputs(readings)
        mask, cache = inputs["attention_mask"], inputs.get(self._cache)
        num_known = 0 if cache is None else cache.get_seq_length()
        num_last = max(reading.num_last for reading in readings)
        options = {
            "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)[:, num_known:],
            "logits_to_keep": num_last,  # those of whole sequences would take most of the memory
        }
        logits = self.model(
            **{**inputs, "input_ids": inputs["input_ids"][:, num_known:]},
            **{name: value for name, value in options.items() if name in self._supported},
            use_cache=cache is not None,
        ).logits[:, -num_last:]
        self.end(readings, inputs)
        return logits

    def _read_ahead(self, readings: list[Reading]) -> None:
        """Read beginnings that several sequences share, then those of much longer sequences."""
        while beginnings := shared_beginnings(readings):
            self._read(beginnings)
            self.prefixes.find(readings)
            if any(len(beginning.path) < len(beginning.token_ids) for beginning in beginnings):
                return  # there was no room for them
        num_new, _ = plan([reading.num_unread for reading in readings])
        longer = [reading for reading in readings if reading.num_unread > num_new]
        if longer:
            self._read([reading.beginning(len(reading.token_ids) - num_new) for reading in longer])
            self.prefixes.find(longer)


def shared_beginnings(readings: list[Reading]) -> list[Reading]:
    """Return the unknown beginnings that others share with the longest sequence, where reading them first pays."""
    groups: dict[tuple[int, int], list[Reading]] = defaultdict(list)  # by their first unknown token
    for reading in readings:
        if reading.num_unread > reading.num_last:
            groups[reading.last_place, reading.token_ids[len(reading.path)]].append(reading)
    beginnings, unread = [], {reading: reading.num_unread for reading in readings}
    for group in groups.values():
        if len(group) > 1:
            longest = max(group, key=lambda reading: len(reading.token_ids))
            shared = {
                other: min(_common_prefix(longest, other), len(other.token_ids) - other.num_last)
                for other in group
                if other is not longest
            }
            beginnings.append(longest.beginning(max(shared.values())))
            for other, length in {**shared, longest: len(beginnings[-1].token_ids)}.items():
                unread[other] = max(len(other.token_ids) - length, other.num_last)
    if not beginnings:
        return []
    cost = plan([reading.num_unread for reading in beginnings])[1] + plan(list(unread.values()))[1]
    return beginnings if cost < plan([reading.num_unread for reading in readings])[1] else []


def plan(numbers: list[int]) -> tuple[int, int]:
    """
    Plan how to read sequences of which these numbers of tokens are unread. A call reads the same number of tokens of
    several sequences, so much longer ones are read in calls before, up to what is then read of all. Return the number
    that the last call reads of each, and the cost of all calls, in tokens.
    """
    numbers = sorted(numbers)
    heights = sorted({0, *numbers})
    taller = [len(numbers) - bisect_right(numbers, height) for height in heights]
    costs, ends = [0] * len(heights), heights[-1]
    for i in range(len(heights) - 2, -1, -1):
        costs[i], ends = min(
            (PASS_TOKENS + taller[i] * (heights[j] - heights[i]) + costs[j], heights[j])
            for j in range(i + 1, len(heights))
        )
    return ends, costs[0]


def _common_prefix(first: Reading, second: Reading) -> int:
    """Count the tokens with which both begin. Those that are known of both are the same."""
    known, most = min(len(first.path), len(second.path)), min(len(first.token_ids), len(second.token_ids))
    ends = range(known + 1, most + 1)
    return known + bisect_left(ends, True, key=lambda end: first.token_ids[known:end] != second.token_ids[known:end])
