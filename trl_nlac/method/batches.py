# SPDX-License-Identifier: Apache-2.0

"""Training examples to micro-batches: sequences that are padded, or folded into one tree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from ..generation.prefix_cache import common_prefix
from ..types import LOSSES, Prompt, Sample, TrainingExample
from .prefix_tree import PrefixTree


NOTHING = TrainingExample("policy", Prompt.of([0]), (0,), weight=0.0)  # for a process that has nothing to compute

Spread = Callable[[list[TrainingExample], int], list[list[TrainingExample]]]
Size = Callable[[int, int], int]  # tokens of a batch of the examples from `start` to before `end`
TokenIds = tuple[list[int], Sequence[int]]  # of a prompt and of its completion


def make_batches(
    samples: Sequence[Sample],
    critic_examples: Sequence[TrainingExample | None],
    policy_examples: Sequence[TrainingExample | None],
    num_steps: int,
    num_micro_batches: int,
    end_of_turn_id: int,
    spread: Spread,
) -> list[list[TrainingExample]]:
    """
    Spread the examples of each gradient step over its micro-batches. The gradient is that of the whole step, however
    they are spread. Samples are those of all gradient steps, an equal number for each. No micro-batch is empty,
    because every process must run the model: examples of weight 0 fill up a step that has less. `spread` is
    [`spread_by_length`], or [`spread_by_prefix`] for trees.
    """
    step_size = len(samples) // num_steps
    batches = []
    for start in range(0, len(samples), step_size):
        chosen = slice(start, start + step_size)
        pairs = zip(critic_examples[chosen], policy_examples[chosen], strict=True)
        step = [example for example in chain.from_iterable(pairs) if example is not None]
        while len(step) < num_micro_batches:
            transition = samples[start].transition
            token_ids = transition.action_ids or (end_of_turn_id,)  # an action of which nothing stayed has none
            step.append(TrainingExample("policy", transition.state, token_ids, weight=0.0))
        batches += spread(step, num_micro_batches)
    return batches


def arrange_by_length(examples: list[TrainingExample]) -> tuple[list[TrainingExample], Size]:
    """Sort examples, the shortest first, so that few are padded; also return the tokens of a padded batch of some."""
    examples = sorted(examples, key=lambda example: example.num_tokens)
    return examples, lambda start, end: (end - start) * examples[end - 1].num_tokens


def spread_by_length(examples: list[TrainingExample], number: int) -> list[list[TrainingExample]]:
    """Spread examples over `number` batches, as many in each, such that they have similar lengths."""
    return split(arrange_by_length(examples)[0], number)


def split(examples: list[TrainingExample], number: int) -> list[list[TrainingExample]]:
    """Split examples in their order into `number` batches, as many in each."""
    return [examples[i * len(examples) // number : (i + 1) * len(examples) // number] for i in range(number)]


def arrange_by_prefix(examples: list[TrainingExample]) -> tuple[list[TrainingExample], Size]:
    """Sort examples such that those that share most follow each other; also return the tokens of a tree of some."""
    examples = sorted(examples, key=lambda example: [*example.prompt.ids, *example.completion_ids])
    sequences = [np.array([*example.prompt.ids, *example.completion_ids]) for example in examples]
    new = [len(sequences[0])]  # tokens that an example adds to the tree of those before it
    for before, sequence in zip(sequences, sequences[1:], strict=False):
        new.append(len(sequence) - common_prefix(before, sequence))
    sizes = np.cumsum(new).tolist()
    return examples, lambda start, end: len(sequences[start]) + sizes[end - 1] - sizes[start]


def spread_by_prefix(examples: list[TrainingExample], number: int) -> list[list[TrainingExample]]:
    """Spread examples over batches, those that share most together, whose trees have about the same size."""
    examples, size = arrange_by_prefix(examples)
    sizes = [size(0, end) for end in range(1, len(examples) + 1)]
    batches, start = [], 0
    for i in range(1, number):
        end = int(np.searchsorted(sizes, sizes[-1] * i / number)) + 1
        end = min(max(end, start + 1), len(examples) - (number - i))  # none is empty
        batches.append(examples[start:end])
        start = end
    return [*batches, examples[start:]]


def fill_batches(number: int, size: Size, limit: int) -> list[int]:
    """
    Divide `number` examples, in their order, into as few batches as possible of at most `limit` tokens, and return
    where each ends. An example that is larger has a batch of its own. `size` returns the tokens of a batch of those
    from `start` to before `end`.
    """
    ends, start = [], 0
    for end in range(2, number + 1):
        if size(start, end) > limit:
            start = end - 1
            ends.append(start)
    return [*ends, number]


@dataclass
class TokenBatch:
    """
    What the model reads in one pass, and the `M` tokens of all completions, one completion after the other. If
    `logits_to_keep` is among the model's inputs, it computes logits, only where a token of a completion comes next in
    one of the sequences.
    """

    inputs: dict[str, Any]
    labels: torch.Tensor  # `(M,)`, the tokens of the completions
    rows: torch.Tensor  # `(M,)`, the example of each
    # `(M,)`: where the model predicts each, in its output, flattened to tokens: its logits or else its hidden states.
    places: torch.Tensor

    @property
    def keeps_logits(self) -> bool:
        """Whether the model computes the logits."""
        return "logits_to_keep" in self.inputs

    def select(self, outputs: torch.Tensor) -> torch.Tensor:
        """Select what the model computed for each token: `(B, N, H)` to `(M, H)`."""
        return outputs.flatten(0, -2).index_select(0, self.places)

    def to(self, device: torch.device) -> "TokenBatch":
        """Move the tensors to a device."""
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return TokenBatch(inputs, *(values.to(device) for values in (self.labels, self.rows, self.places)))


@dataclass
class MicroBatch:
    """The `B` examples of one pass."""

    examples: list[TrainingExample]
    tokens: TokenBatch
    weights: torch.Tensor  # `(B,)`
    loss_ids: torch.Tensor  # `(B,)`, indices into `LOSSES`
    transition_ids: torch.Tensor  # `(B,)`, `-1` where an example has none
    is_taught: torch.Tensor  # `(M,)`, whether a token has the distribution of a teacher as its target
    teacher: TokenBatch | None  # the same tokens after the teacher's prompts


@dataclass(frozen=True)
class NLACCollator:
    """
    Make a [`MicroBatch`] of examples. If it `shares_prefixes`, the sequences are folded into a
    [`~method.prefix_tree.PrefixTree`], which only a model with the attention for it can read; beyond the CPU one of
    whole blocks. Otherwise they are padded on the right. If it `keeps_logits`, the model computes the logits of the
    completions, all at once. Otherwise its output layer is called in chunks, see [`~method.head.answer_values`].
    """

    pad_token_id: int
    shares_prefixes: bool = False
    keeps_logits: bool = True
    device: torch.device = torch.device("cpu")

    def __call__(self, examples: list[TrainingExample]) -> MicroBatch:
        taught = [example for example in examples if example.teacher_prompt is not None]
        is_taught = [example.teacher_prompt is not None for example in examples for _ in example.completion_ids]
        transition_ids = [-1 if example.transition_id is None else example.transition_id for example in examples]
        return MicroBatch(
            examples,
            self._tokens([(example.prompt, example.completion_ids) for example in examples]),
            torch.tensor([example.weight for example in examples], device=self.device),
            torch.tensor([LOSSES.index(example.loss) for example in examples], device=self.device),
            torch.tensor(transition_ids, device=self.device),
            torch.tensor(is_taught, dtype=torch.bool, device=self.device),
            self._tokens([(example.teacher_prompt, example.completion_ids) for example in taught]) if taught else None,
        )

    def _tokens(self, parts: list[tuple[Prompt, Sequence[int]]]) -> TokenBatch:
        sequences = [(prompt.ids, completion) for prompt, completion in parts]
        inputs, columns = self._fold(sequences) if self.shares_prefixes else self._pad(sequences)
        lengths = torch.tensor([len(completion) for _, completion in sequences])
        labels = torch.tensor([token for _, completion in sequences for token in completion], dtype=torch.long)
        rows = torch.arange(len(sequences)).repeat_interleave(lengths)
        width = inputs["input_ids"].shape[1]
        if self.keeps_logits:
            inputs["logits_to_keep"], columns = columns.unique(return_inverse=True)
            width = len(inputs["logits_to_keep"])
        of_row = 0 if self.shares_prefixes else rows * width
        return TokenBatch(inputs, labels, rows, of_row + columns).to(self.device)

    def _pad(self, sequences: list[TokenIds]) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the model's arguments, and the column from which each token of a completion is predicted."""
        input_ids = [torch.tensor([*prompt, *completion]) for prompt, completion in sequences]
        inputs = {
            "input_ids": pad_sequence(input_ids, batch_first=True, padding_value=self.pad_token_id),
            "attention_mask": pad_sequence([torch.ones_like(ids) for ids in input_ids], batch_first=True),
        }
        return inputs, torch.cat([torch.arange(len(p) - 1, len(p) + len(c) - 1) for p, c in sequences])

    def _fold(self, sequences: list[TokenIds]) -> tuple[dict[str, Any], torch.Tensor]:
        tree = PrefixTree.of([[*prompt, *completion] for prompt, completion in sequences])
        if self.device.type != "cpu":
            tree = tree.in_blocks(self.pad_token_id)
        counts = np.bincount(np.concatenate(tree.paths), minlength=len(tree))  # of the sequences with each token
        inputs = {
            "input_ids": tree.input_ids[None],
            "position_ids": tree.depths[None],
            # Transformers takes a mask of this shape for complete, and makes none. The loss that balances experts
            # weighs the tokens by it.
            "attention_mask": torch.from_numpy(counts)[None, None, None],
            "prefix_tree": tree,
        }
        before = [path[len(prompt) - 1 : -1] for path, (prompt, _) in zip(tree.paths, sequences, strict=True)]
        return inputs, torch.from_numpy(np.concatenate(before))
