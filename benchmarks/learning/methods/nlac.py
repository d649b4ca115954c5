# SPDX-License-Identifier: Apache-2.0

"""
NLAC as a user gets it, with nothing set but learning rate, lengths, budget and device; variants say what changes.
"""

from dataclasses import replace
from itertools import cycle, islice

from benchmarks.learning.methods.extraction import (
    BlindTrainer,
    ReverseStoredActionsTrainer,
    ReverseTrainer,
    StoredActionsTrainer,
)
from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.swaps import measure, table
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
    swaps: int = 0,
    **settings,
) -> LearningCurve:
    """
    Train until the budget is spent. With `swaps`, so many tasks then show which role is lost, see `learning/swaps.py`.
    """
    args = replace(acting, max_steps=10**6, logging_steps=100, **settings)
    trained = TRAINERS[trainer](model=task.model, args=args, **task.trainer_arguments, peft_config=task.peft_config)
    player = Player(task, trained.args, trained.model, trained.roles)
    curve = train_until_spent(trained, player, budget, interval, lambda: trained.num_environment_steps)
    if swaps:
        curve.swaps = measure(trained, list(islice(cycle(task.rows), swaps)))
        print(table(curve.swaps))
    return curve
