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

"""Losses that are not finite."""

import logging
from collections.abc import Callable

import torch
from accelerate.utils import gather

from ..method.losses import LOSSES
from .failures import TrainingStopped


logger = logging.getLogger(__name__)


class LossGuard:
    """
    Takes examples whose loss is not finite out of their batch, counts them, and says which they are.

    Args:
        max_batches (`int`):
            Number of micro-batches in a row with such losses, on any process, after which training stops.

    Attributes:
        num_dropped (`int`):
            Number of such examples so far, on all processes.
    """

    def __init__(self, max_batches: int):
        self.max_batches = max_batches
        self.num_dropped = 0
        self.num_batches = 0  # in a row

    def finite_losses(
        self, compute: Callable[[dict[str, torch.Tensor]], torch.Tensor], inputs: dict[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """
        The batch and what `compute` gives for its examples, `(B,)`: finite on every process, if need be after the model
        ran again, on all processes, without some of the examples.

        Raises:
            TrainingStopped: If examples were left out of too many micro-batches in a row.
            RuntimeError: If losses are not finite even without them.
        """
        losses = compute(inputs)
        dropped = ~losses.detach().isfinite()
        number = _count(dropped)
        self.num_batches = self.num_batches + 1 if number else 0
        if not number:
            return inputs, losses
        self.num_dropped += number
        self._report(losses, inputs, dropped)
        if self.num_batches >= self.max_batches:
            raise TrainingStopped(
                f"{self.num_batches} micro-batches in a row had losses that are not finite (`max_nonfinite_batches`), on "
                "one process or more. Training stops, a checkpoint is saved. See the warnings for the transitions; lower "
                "`learning_rate` or `max_grad_norm`, or train in float32 or bfloat16 in place of float16."
            )
        inputs = _without(inputs, dropped)
        losses = compute(inputs)
        if _count(~losses.detach().isfinite()):
            raise RuntimeError(
                "The model gives losses that are not finite for anything: its weights are spoilt. Go back to an earlier "
                "checkpoint, with a lower `learning_rate` or `max_grad_norm`, or in float32 or bfloat16."
            )
        return inputs, losses

    @staticmethod
    def _report(losses: torch.Tensor, inputs: dict[str, torch.Tensor], dropped: torch.Tensor) -> None:
        for i in dropped.nonzero()[:, 0].tolist():
            logger.warning(
                f"The {LOSSES[inputs['loss_ids'][i]]} loss of transition {int(inputs['transition_ids'][i])} is "
                f"{losses[i].item()}; the example is not trained on. Its tokens end with "
                f"{inputs['input_ids'][i][inputs['attention_mask'][i].bool()][-20:].tolist()}."
            )


def _count(chosen: torch.Tensor) -> int:
    """How many are true, on all processes."""
    return int(gather(chosen.sum()).sum())


def _without(inputs: dict[str, torch.Tensor], dropped: torch.Tensor) -> dict[str, torch.Tensor]:
    """The batch with other examples, of weight 0, in place of those: its shapes stay, as other processes expect."""
    inputs = {name: tensor.clone() for name, tensor in inputs.items()}
    inputs["weights"][dropped] = 0.0
    inputs["transition_ids"][dropped] = -1
    rows = {"": dropped}
    if "teacher_input_ids" in inputs:
        rows["teacher_"] = dropped[inputs["loss_ids"] == LOSSES.index("critic")]
    for prefix, chosen in rows.items():
        for name, first in (("input_ids", 0), ("attention_mask", 1), ("completion_mask", 0)):
            inputs[prefix + name][chosen] = first
        inputs[f"{prefix}completion_mask"][chosen, 1] = 1
    return inputs
