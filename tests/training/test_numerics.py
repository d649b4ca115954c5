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

from collections.abc import Callable

import pytest
import torch
from helpers.testing_utils import make_trainer

from trl_nlac import NLACTrainer


CONFIG = dict(max_steps=3, per_device_train_batch_size=8, episodes_per_iteration=8, logging_steps=1)


class Poison:
    """Makes the training model give NaN for some rows: `spoils` gets the sum of their token ids."""

    def __init__(self, trainer: NLACTrainer, spoils: Callable[[int], bool], value: float = torch.nan):
        self.spoils, self.value = spoils, value
        trainer.model.register_forward_hook(self, with_kwargs=True)

    def __call__(self, model, args, kwargs, output):
        if model.training:
            for i, ids in enumerate(kwargs["input_ids"]):
                if self.spoils(int(ids.sum())):
                    output.logits[i] = output.logits[i] * self.value  # so does its gradient
        return output


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("loss_type", ["sampled", "distill"])
def test_the_rest_of_the_batch_is_trained_on(tmp_path, caplog, value, loss_type):
    """The gradient is that of the batch without the example."""
    trainer = make_trainer(tmp_path, {**CONFIG, "critic_loss_type": loss_type})
    trainer.train()
    inputs = batch_of(trainer)
    row = int((inputs["loss_ids"] == 0).nonzero()[1, 0])

    def gradient(inputs) -> torch.Tensor:
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        assert loss.isfinite()
        return torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])

    trainer.model.train()
    without = {**inputs, "weights": inputs["weights"].clone()}
    without["weights"][row] = 0
    expected = gradient(without)
    assert trainer.loss_guard.num_dropped == 0
    before = trainer.replay.priority_mean
    poisoned = int(inputs["input_ids"][row].sum())
    Poison(trainer, lambda ids: ids == poisoned, value)
    actual = gradient(inputs)
    assert trainer.loss_guard.num_dropped == 1
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert trainer.replay.priority_mean == pytest.approx(before)
    transition = int(inputs["transition_ids"][row])
    assert f"The critic loss of transition {transition} is" in caplog.text and transition >= 0


def batch_of(trainer: NLACTrainer) -> dict[str, torch.Tensor]:
    trainer._batches.extend(trainer._iteration(list(trainer.train_dataset)[:8]))
    return trainer._prepare_inputs([])


def test_too_many_in_a_row_stop_training_with_a_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path, {**CONFIG, "max_nonfinite_batches": 2, "max_steps": 9})
    weights = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    Poison(trainer, lambda ids: ids > 0)
    with pytest.raises(RuntimeError, match="2 micro-batches in a row.*max_nonfinite_batches"):
        trainer.train()
    assert (tmp_path / "checkpoint-1" / "trainer_state.json").exists()
    assert trainer.state.log_history[0]["nonfinite_losses"] > 0
    for name, parameter in trainer.model.named_parameters():
        assert parameter.isfinite().all(), name
        assert parameter.equal(weights[name]), name  # nothing was learned, nothing was harmed


def test_spoilt_weights_are_not_saved(tmp_path):
    trainer = make_trainer(tmp_path, {**CONFIG, "max_steps": 9})
    Poison(trainer, lambda ids: True)
    with pytest.raises(RuntimeError, match="for anything: its weights are spoilt"):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


def test_small_updates_are_kept(tmp_path):
    """With `bf16=True` the weights stay in float32: an update of 1e-5 is not rounded away, nor is their average."""
    options = dict(bf16=True, learning_rate=1e-5, lr_scheduler_type="constant", target_update_rate=0.1, max_steps=1)
    trainer = make_trainer(tmp_path, {**CONFIG, **options})
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    averages = trainer.target_weights.state_dict()
    for name, weights in before.items():
        change = (after[name] - weights).abs()
        assert after[name].dtype == torch.float32 and 1e-6 < change.max() < 2e-5, name
        assert not torch.equal(after[name].to(torch.bfloat16).float(), after[name]), name
        assert (averages[name] - weights).abs().max() > 0, name


def test_weights_that_round_are_reported(tmp_path, caplog):
    make_trainer(tmp_path, {"model_init_kwargs": {"dtype": "bfloat16"}})
    assert "small updates are rounded away" in caplog.text
    caplog.clear()
    make_trainer(tmp_path)
    assert "rounded away" not in caplog.text
