# SPDX-License-Identifier: Apache-2.0
"""Weights that do not change although examples are trained on."""

from collections import defaultdict

import torch
from accelerate.logging import get_logger
from torch import nn
from transformers import TrainerCallback

from ..shards import local_shards
from ..types import LOSSES


logger = get_logger(__name__)

_VALUES_OF_PARAMETER = 16
_NUM_STEPS = 10  # at least, between compared values
_MIN_CHANGED = 0.5  # share of the values in 16 bits, below which most updates are rounded away


class UnchangedWeightsCallback(TrainerCallback):
    """
    Warn once when examples are trained on and the weights do not follow. At the logs of training, a few values of each
    trained parameter are compared with earlier ones, on each process in its own shard. The learning rate must not rise
    in between, as it does in a warm-up.
    """

    def __init__(self):
        self.has_warned = False
        self._values: dict[torch.dtype, torch.Tensor] | None = None
        self._step, self._rate = 0, 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self._values = None

    def on_log(self, args, state, control, logs=None, model=None, **kwargs):
        if self.has_warned or "loss" not in logs:
            return
        step, rate = state.global_step, logs["learning_rate"]
        is_trained = any(f"{loss}/loss" in logs for loss in LOSSES)
        if self._values is not None and is_trained and rate <= self._rate and step - self._step < _NUM_STEPS:
            return
        values = sampled_values(model)
        if self._values is not None and is_trained and rate <= self._rate:
            cause = explain_unchanged(self._values, values, rate, logs.get("grad_norm"))
            if cause is not None:
                self.has_warned = True
                logger.warning(f"Over {step - self._step} optimizer steps {cause}")
        self._values, self._step, self._rate = values, step, rate


def sampled_values(model: nn.Module) -> dict[torch.dtype, torch.Tensor]:
    """Copy a few values of this process's shard of each trained parameter, as the optimizer updates it, by dtype."""
    values = defaultdict(list)
    for shard in local_shards(model).values():
        master = shard.master.detach().reshape(-1)
        if len(master):
            number = min(len(master), _VALUES_OF_PARAMETER)
            chosen = torch.arange(number) * (len(master) - 1) // max(1, number - 1)
            values[master.dtype].append(master[chosen.to(master.device)].cpu())
    return {dtype: torch.cat(parts) for dtype, parts in values.items()}


def explain_unchanged(
    before: dict[torch.dtype, torch.Tensor],
    after: dict[torch.dtype, torch.Tensor],
    learning_rate: float,
    grad_norm: float | None,
) -> str | None:
    """Say why [`sampled_values`] did not change, as half a sentence; `None` if they did."""
    changed = {dtype: (before[dtype] != values).float().mean().item() for dtype, values in after.items()}
    if changed and not any(changed.values()):
        if not learning_rate:
            return (
                "the weights did not change: `learning_rate` is 0. Raise it, or look at `lr_scheduler_type` and "
                "`warmup_steps`."
            )
        if grad_norm == 0:
            return (
                "the weights did not change: the gradient (`grad_norm`) is 0. Look whether "
                "`gradient_checkpointing=False` gives one."
            )
    for dtype, share in changed.items():
        if not share or (dtype.itemsize == 2 and share < _MIN_CHANGED):
            return (
                f"only {share:.0%} of the weights in {dtype} changed: the updates are smaller than its resolution and "
                f"are rounded away. Raise `learning_rate` ({learning_rate:.1e}), or load the model in float32 "
                "(`model_init_kwargs={'dtype': 'float32'}`; `bf16=True` still computes in bfloat16)."
            )
    return None
