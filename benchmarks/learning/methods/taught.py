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


"""
A control of Mastermind: supervised fine-tuning on games of a player that knows the game. What the base model does not
learn from it, no method that learns from the model's own games can be expected to teach.
"""

from itertools import cycle, islice

from accelerate import Accelerator
from datasets import Dataset

from benchmarks.learning.mastermind import fitting_games
from benchmarks.learning.methods.sft import sft_trainer
from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    max_steps: int = 1400,
    rehearsal_ratio: float = 1.0,
) -> LearningCurve:
    """
    Train on games of a player whose guesses fit all answers, with [`~trl.SFTTrainer`].

    Args:
        task ([`LearningTask`]):
            The game.
        acting ([`NLACConfig`]):
            How to sample, the output folder, the device and the precision.
        budget (`int`):
            Guesses of the player, which count as environment steps, in equal parts for each gradient step.
        interval (`int`):
            Environment steps between two evaluations.
        max_steps (`int`, *optional*, defaults to `1400`):
            Gradient steps of 32 guesses, about as many as NLAC has.
        rehearsal_ratio (`float`, *optional*, defaults to `1.0`):
            Rehearsal samples of a batch, relative to the guesses.
    """
    games = fitting_games(list(islice(cycle(task.rows), budget)), acting.seed)
    logs, num_guesses = [], 0
    for game in games:
        if num_guesses < budget:
            num_guesses += sum(message["role"] == "assistant" for message in game["messages"])
            logs.append(game)
    trainer = sft_trainer(task, acting, Dataset.from_list(logs), max_steps, rehearsal_ratio)
    player = Player.of_model(task, acting, trainer.model, Accelerator(cpu=True))
    return train_until_spent(
        *(trainer, player, budget, interval),
        num_environment_steps=lambda: trainer.state.global_step * budget // max_steps,
    )
