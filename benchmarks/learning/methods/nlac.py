# SPDX-License-Identifier: Apache-2.0

"""
NLAC as a user gets it, with nothing set but learning rate, lengths, budget and device; variants say what changes.
"""

from dataclasses import replace

from benchmarks.learning.methods.extraction import (
    BlindTrainer,
    ReverseStoredActionsTrainer,
    ReverseTrainer,
    StoredActionsTrainer,
)
from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig, NLACTrainer


TRAINERS = {
    "nlac": NLACTrainer,
    "blind": BlindTrainer,
    "reverse": ReverseTrainer,
    "stored_actions": StoredActionsTrainer,
    "reverse_stored_actions": ReverseStoredActionsTrainer,
}


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    trainer: str = "nlac",
    **settings,
) -> LearningCurve:
    """Train until the budget is spent."""
    args = replace(acting, max_steps=10**6, logging_steps=100, **settings)
    trained = TRAINERS[trainer](model=task.model, args=args, **task.trainer_arguments, peft_config=task.peft_config)
    player = Player(task, trained.args, trained.model, trained.roles)
    return train_until_spent(trained, player, budget, interval, lambda: trained.num_environment_steps)
