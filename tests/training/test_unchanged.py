# SPDX-License-Identifier: Apache-2.0

import re

import pytest
import torch
from helpers.testing_utils import make_trained
from torch import nn

from trl_nlac.training.unchanged import explain_unchanged, sampled_values


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"learning_rate": 0.0, "max_steps": 23}, "`learning_rate` is 0"),
        ({"model_init_kwargs": {"dtype": "bfloat16"}, "learning_rate": 5e-6}, "in torch.bfloat16 changed"),
        ({"learning_rate": 1e-14}, "of the weights in torch.float32 changed"),
        ({"learning_rate": 1e-6}, None),
        ({"learning_rate": 1e-14, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 12}, None),
    ],
    ids=str,
)
def test_the_cause_is_named(tmp_path, caplog, config, cause):
    settings = {"max_steps": 13, "logging_steps": 1, "max_turns": 1, "per_device_train_batch_size": 1}
    make_trained(tmp_path, {**settings, "lr_scheduler_type": "constant", **config})
    assert re.findall(r"Over (\d+) optimizer steps", caplog.text) == ([] if cause is None else ["10"])
    assert cause is None or cause in caplog.text


def test_a_gradient_of_zero_is_named():
    values = {torch.float32: torch.ones(3)}
    assert "the gradient (`grad_norm`) is 0" in explain_unchanged(values, values, 1e-3, grad_norm=0.0)


def test_a_parameter_with_more_values_than_float32_can_count():
    model = nn.Linear(2**23 + 2, 2, bias=False)
    model.weight.data[-1, -1] = 3.0
    (values,) = sampled_values(model).values()
    assert len(values) == 16 and values[-1] == 3.0
