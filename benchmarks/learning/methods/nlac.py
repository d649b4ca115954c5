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


"""NLAC in the learning benchmark, with the ablation that reads critiques of other requests."""

from dataclasses import replace

from benchmarks.learning.methods.roles import blind_critiques
from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig, NLACTrainer


class BlindTrainer(NLACTrainer):
    """NLAC whose refinement reads critiques of other requests. The critic is trained as usual."""

    def _refine(self, transitions, targets, criticise=blind_critiques):
        return super()._refine(transitions, targets, criticise)


def train(
    task: LearningTask, acting: NLACConfig, budget: int, interval: int, blind: bool = False, **settings
) -> LearningCurve:
    """Train with [`NLACTrainer`], or [`BlindTrainer`], until the budget of environment steps is spent."""
    args = replace(acting, max_steps=10**6, logging_steps=100, **settings)
    trainer = (BlindTrainer if blind else NLACTrainer)(
        model=task.model,
        args=args,
        **task.trainer_arguments,
        peft_config=task.peft_config,
    )
    player = Player.of_trainer(task, trainer)
    return train_until_spent(trainer, player, budget, interval, lambda: trainer.num_environment_steps)
