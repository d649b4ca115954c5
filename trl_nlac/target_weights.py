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

"""Target weights: a slow copy of the trained weights, without a second model."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import TrainerCallback


class TargetWeights:
    """
    Exponential moving average of the trainable weights, theta_bar of algorithm 1, kept in float32: in bfloat16 the
    small updates of a slow average would be rounded away.

    Under LoRA the trainable weights are the adapter, so the average is one of the adapter alone.

    Args:
        model (`nn.Module`):
            Model whose trainable parameters are averaged. The average starts at their values.
        update_rate (`float`, *optional*, defaults to `0.005`):
            Tau, the weight of the model in each update.
    """

    def __init__(self, model: nn.Module, update_rate: float = 0.005):
        self.update_rate = update_rate
        self._averages = {
            name: parameter.detach().to(torch.float32, copy=True) for name, parameter in _trainable(model)
        }

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """theta_bar <- tau theta + (1 - tau) theta_bar (algorithm 1, line 10)."""
        for name, parameter in _trainable(model):
            self._averages[name].lerp_(parameter.detach().float(), self.update_rate)

    @contextmanager
    def swapped_into(self, model: nn.Module) -> Iterator[None]:
        """
        Let `model` compute with the target weights. Its own weights come back bit for bit, whatever happens inside.
        """
        own = {name: parameter.data for name, parameter in _trainable(model)}
        try:
            for name, parameter in _trainable(model):
                parameter.data = self._averages[name].to(parameter.dtype)
            yield
        finally:
            for name, parameter in _trainable(model):
                parameter.data = own[name]

    @torch.no_grad()
    def distance(self, model: nn.Module) -> float:
        """`||theta - theta_bar|| / ||theta_bar||`."""
        squares = [
            torch.stack([(parameter.float() - average).square().sum(), average.square().sum()])
            for (_, parameter), average in zip(_trainable(model), self._averages.values(), strict=True)
        ]
        gap, size = torch.stack(squares).sum(0).tolist()
        return (gap / size) ** 0.5

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._averages)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """
        Raises:
            ValueError: If `state` belongs to other parameters.
        """
        if state.keys() != self._averages.keys():
            different = sorted(state.keys() ^ self._averages.keys())
            raise ValueError(f"The saved target weights do not fit the model, for example `{different[0]}`.")
        for name, average in self._averages.items():
            average.copy_(state[name])


def _trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


class TargetUpdateCallback(TrainerCallback):
    """theta_bar <- tau theta + (1 - tau) theta_bar after optimizer steps (algorithm 1, line 10)."""

    def __init__(self, target_weights: TargetWeights, sync_steps: int):
        self.target_weights = target_weights
        self.sync_steps = sync_steps

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.sync_steps == 0:
            self.target_weights.update(model)
