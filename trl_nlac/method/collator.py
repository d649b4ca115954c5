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

"""Training examples to a padded batch."""

from dataclasses import dataclass

import torch
from trl.trainer.utils import pad

from ..types import Prompt, TrainingExample
from .losses import LOSSES


@dataclass(frozen=True)
class NLACCollator:
    """
    Pads the examples of one micro-batch, on the right.

    Args:
        pad_token_id (`int`):
            Padding token.

    Returns of a call:
        `dict[str, torch.Tensor]`: `input_ids`, `attention_mask` and `completion_mask` of shape `(B, T)`; `weights`
        and `loss_ids` (index into `("critic", "policy", "rehearsal")`) of shape `(B,)`; `transition_ids` of shape
        `(B,)`, `-1` where an example comes from none; and of the examples that have a teacher's prompt
        `teacher_input_ids`, `teacher_attention_mask` and `teacher_completion_mask` of shape `(C, S)`.
    """

    pad_token_id: int

    def __call__(self, examples: list[TrainingExample]) -> dict[str, torch.Tensor]:
        transition_ids = [-1 if example.transition_id is None else example.transition_id for example in examples]
        batch = {
            **self._pad([(example.prompt, example.completion_ids) for example in examples]),
            "weights": torch.tensor([example.weight for example in examples]),
            "loss_ids": torch.tensor([LOSSES.index(example.loss) for example in examples]),
            "transition_ids": torch.tensor(transition_ids),
        }
        taught = [(e.teacher_prompt, e.completion_ids) for e in examples if e.teacher_prompt is not None]
        if taught:
            batch.update({f"teacher_{name}": tensor for name, tensor in self._pad(taught).items()})
        return batch

    def _pad(self, sequences: list[tuple[Prompt, tuple[int, ...]]]) -> dict[str, torch.Tensor]:
        prompts = [prompt.ids for prompt, _ in sequences]
        completions = [list(completion_ids) for _, completion_ids in sequences]
        input_ids = [torch.tensor(p + c) for p, c in zip(prompts, completions, strict=True)]
        masks = [torch.tensor([0] * len(p) + [1] * len(c)) for p, c in zip(prompts, completions, strict=True)]
        return {
            "input_ids": pad(input_ids, padding_value=self.pad_token_id),
            "attention_mask": pad([torch.ones_like(ids) for ids in input_ids], padding_value=0),
            "completion_mask": pad(masks, padding_value=0),
        }
