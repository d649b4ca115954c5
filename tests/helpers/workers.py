# SPDX-License-Identifier: Apache-2.0


"""Training with environments in other processes."""

from pathlib import Path

import pytest
from datasets import Dataset
from helpers.testing_utils import make_trainer

from trl_nlac.environments import StepResult


def check_training(folder: Path, workers: str) -> None:
    """Train with `environment_workers=workers`, where reward functions cannot read `environments`."""

    class Game:  # within a function it travels by value
        def reset(self, start):
            return f"{start}"

        def step(self, action):
            return StepResult("won", 1.0, terminated=True)

    def judge(completions, environments, **kwargs):
        return [0.0] * len(completions)

    options = {"environment_workers": workers, "max_steps": 1}
    arguments = {"train_dataset": Dataset.from_dict({"start": [1] * 4}), "environment_factory": lambda: Game()}
    trainer = make_trainer(folder, options, **arguments)
    trainer.train()
    assert trainer.num_environment_steps == 4
    with pytest.raises(ValueError, match=f"`judge` reads `environments`.*environment_workers='{workers}'"):
        make_trainer(folder, options, **arguments, reward_funcs=judge)
