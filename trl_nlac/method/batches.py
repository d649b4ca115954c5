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

"""Training examples to padded micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from trl.trainer.utils import pad

from ..types import LOSSES, Prompt, Sample, TrainingExample


def make_batches(
    samples: Sequence[Sample],
    critic_examples: Sequence[TrainingExample | None],
    policy_examples: Sequence[TrainingExample | None],
    rehearsal_examples: Sequence[Sequence[TrainingExample]],
    num_micro_batches: int,
    end_of_turn_id: int,
) -> list[list[TrainingExample]]:
    """
    Spread the examples of each gradient step over its micro-batches, as many in each, by length: a policy's example is
    much shorter than a critic's, and would be padded to it. The gradient is that of the whole step, however they are
    spread.

    Args:
        samples (`Sequence[Sample]`):
            Samples of all gradient steps, an equal number for each.
        critic_examples (`Sequence[TrainingExample | None]`), policy_examples (`Sequence[TrainingExample | None]`):
            Examples of each sample, where there are any.
        rehearsal_examples (`Sequence[Sequence[TrainingExample]]`):
            Examples of rehearsal for each gradient step.
        num_micro_batches (`int`):
            Number of micro-batches of a gradient step.
        end_of_turn_id (`int`):
            Token that ends an assistant's turn.

    Returns:
        `list[list[TrainingExample]]`: micro-batches. None is empty, because every process must run the model: examples
        of weight 0 fill up a step that has less.
    """
    step_size = len(samples) // len(rehearsal_examples)
    batches = []
    for start, rehearsed in zip(range(0, len(samples), step_size), rehearsal_examples, strict=True):
        chosen = slice(start, start + step_size)
        pairs = zip(critic_examples[chosen], policy_examples[chosen], strict=True)
        step = [*rehearsed, *(example for example in chain.from_iterable(pairs) if example is not None)]
        while len(step) < num_micro_batches:
            transition = samples[start].transition
            token_ids = transition.action_ids or (end_of_turn_id,)  # an action of which nothing stayed has none
            step.append(TrainingExample("policy", transition.state, token_ids, weight=0.0))
        batches += spread_by_length(step, num_micro_batches)
    return batches


def spread_by_length(examples: list[TrainingExample], number: int) -> list[list[TrainingExample]]:
    """Spread examples over `number` batches, as many in each, the shortest in the first."""
    return split(sorted(examples, key=lambda example: example.num_tokens), number)


def split(examples: list[TrainingExample], number: int) -> list[list[TrainingExample]]:
    """Split examples in their order into `number` batches, as many in each."""
    return [examples[i * len(examples) // number : (i + 1) * len(examples) // number] for i in range(number)]


@dataclass(frozen=True)
class NLACCollator:
    """
    Pad the examples of one micro-batch, on the right.

    Args:
        pad_token_id (`int`):
            Padding token.

    Returns of a call:
        `dict[str, torch.Tensor]`: `input_ids`, `attention_mask` and `completion_mask` of shape `(B, T)`; `weights`
        and `loss_ids` (index into `("critic", "policy", "rehearsal")`) of shape `(B,)`; `transition_ids` of shape
        `(B,)`, `-1` where an example has none; and where examples have a teacher's prompt `teacher_input_ids`,
        `teacher_attention_mask` and `teacher_completion_mask` of shape `(C, S)`, with 1 on the tokens from
        `teacher_start` on, and `taught_mask` of shape `(B, T)`, with 1 on the same tokens.
    """

    pad_token_id: int

    def __call__(self, examples: list[TrainingExample]) -> dict[str, torch.Tensor]:
        transition_ids = [-1 if example.transition_id is None else example.transition_id for example in examples]
        batch = {
            **self._pad([(example.prompt.ids, example.completion_ids) for example in examples]),
            "weights": torch.tensor([example.weight for example in examples]),
            "loss_ids": torch.tensor([LOSSES.index(example.loss) for example in examples]),
            "transition_ids": torch.tensor(transition_ids),
        }
        taught = [example for example in examples if example.teacher_prompt is not None]
        if taught:
            batch["taught_mask"] = self._pad([_split(e.prompt, e) for e in examples])["completion_mask"]
            teacher = self._pad([_split(e.teacher_prompt, e) for e in taught])
            batch.update({f"teacher_{name}": tensor for name, tensor in teacher.items()})
        return batch

    def _pad(self, sequences: list[tuple[list[int], tuple[int, ...]]]) -> dict[str, torch.Tensor]:
        input_ids = [torch.tensor([*prompt, *completion]) for prompt, completion in sequences]
        masks = [torch.tensor([0] * len(prompt) + [1] * len(completion)) for prompt, completion in sequences]
        return {
            "input_ids": pad(input_ids, padding_value=self.pad_token_id),
            "attention_mask": pad([torch.ones_like(ids) for ids in input_ids], padding_value=0),
            "completion_mask": pad(masks, padding_value=0),
        }


def _split(prompt: Prompt, example: TrainingExample) -> tuple[list[int], tuple[int, ...]]:
    """Split `prompt` and the completion of `example` where a teacher's distribution begins to be the target."""
    start = example.teacher_start
    return [*prompt.ids, *example.completion_ids[:start]], example.completion_ids[start:]
