# SPDX-License-Identifier: Apache-2.0

import pytest
import torch
from accelerate import PartialState
from helpers.testing_utils import make_trained
from torch import nn
from transformers import TrainerState

from trl_nlac.training.unchanged import UnchangedWeightsCallback, explain_unchanged, sampled_values


WARNING = "Over 10 optimizer steps"


def train(rates: list[float], dtype: torch.dtype = torch.float32, is_trained: bool = True) -> bool:
    PartialState(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    callback = UnchangedWeightsCallback()
    callback.on_train_begin(None, None, None)
    for i, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        model(torch.randn(8, 64, dtype=dtype)).square().sum().backward()
        optimizer.step()
        logs = {"loss": 1.0, "learning_rate": rate, "grad_norm": 1.0, **({"critic/loss": 1.0} if is_trained else {})}
        callback.on_log(None, TrainerState(global_step=i + 1), None, logs=logs, model=model)
    return callback.has_warned


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"learning_rate": 0.0}, "`learning_rate` is 0"),
        ({"model_init_kwargs": {"dtype": "bfloat16"}, "learning_rate": 5e-6}, "in torch.bfloat16 changed"),
        ({"learning_rate": 1e-6}, None),
    ],
    ids=str,
)
def test_the_cause_is_named(tmp_path, caplog, config, cause):
    settings = {"max_steps": 12, "logging_steps": 1, "max_turns": 1, "per_device_train_batch_size": 1}
    make_trained(tmp_path, {**settings, "lr_scheduler_type": "constant", **config})
    assert (WARNING in caplog.text) == (cause is not None)
    if cause is not None:
        assert cause in caplog.text


def test_a_gradient_of_zero_is_named():
    values = {torch.float32: torch.ones(3)}
    assert "the gradient (`grad_norm`) is 0" in explain_unchanged(values, values, 1e-3, grad_norm=0.0)


def test_most_updates_are_rounded_away_in_bfloat16(caplog):
    assert train([5e-6] * 11, torch.bfloat16)
    assert "% of the weights in torch.bfloat16 changed" in caplog.text
    assert (
        "Raise `learning_rate` (5.0e-06)" in caplog.text and "`model_init_kwargs={'dtype': 'float32'}`" in caplog.text
    )
    assert not train([5e-6] * 11)
    assert not train([1e-3] * 11, torch.bfloat16)
    assert train([1e-14] * 11) and "of the weights in torch.float32 changed" in caplog.text


def test_no_rate_is_expected_in_a_warm_up():
    assert not train([0.0] + [1e-3 * i / 30 for i in range(30)])
    assert not train([1e-14 * i for i in range(30)])
    assert train([1e-14 * i for i in range(30)] + [1e-14] * 11)


def test_nothing_to_train_on_is_reported_elsewhere():
    assert not train([0.0] * 30, is_trained=False)


def test_it_is_said_once(caplog):
    assert train([0.0] * 30)
    assert caplog.text.count(WARNING) == 1


def test_a_parameter_with_more_values_than_float32_can_count():
    model = nn.Linear(2**23 + 2, 2, bias=False)
    model.weight.data[-1, -1] = 3.0
    (values,) = sampled_values(model).values()
    assert len(values) == 16 and values[-1] == 3.0
