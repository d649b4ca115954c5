# SPDX-License-Identifier: Apache-2.0


"""NLAC in the learning benchmark, also with critiques of other requests, and with the reverse divergence."""

from dataclasses import replace

from benchmarks.learning.methods.extraction import (
    RehearsedRefinementsTrainer,
    RehearsedStoredActionsTrainer,
    ReverseStoredActionsTrainer,
    ReverseTrainer,
    StoredActionsTrainer,
)
from benchmarks.learning.methods.roles import blind_critiques
from benchmarks.learning.playing import LearningCurve, Player, train_until_spent
from benchmarks.learning.tasks import LearningTask
from trl_nlac import NLACConfig, NLACTrainer


class BlindTrainer(NLACTrainer):
    """NLAC whose refinement reads critiques of other requests. The critic is trained as usual."""

    def _refine(self, transitions, targets=None, criticise=blind_critiques):
        return super()._refine(transitions, targets, criticise)


TRAINERS = {
    "nlac": NLACTrainer,
    "blind": BlindTrainer,
    "reverse": ReverseTrainer,
    "stored_actions": StoredActionsTrainer,
    "reverse_stored_actions": ReverseStoredActionsTrainer,
    "rehearsed_refinements": RehearsedRefinementsTrainer,
    "rehearsed_stored_actions": RehearsedStoredActionsTrainer,
}


def train(
    task: LearningTask,
    acting: NLACConfig,
    budget: int,
    interval: int,
    trainer: str = "nlac",
    **settings,
) -> LearningCurve:
    """Train with one of `TRAINERS` until the budget of environment steps is spent."""
    args = replace(acting, max_steps=10**6, logging_steps=100, **settings)
    if args.rehearsal_source == "self":  # in place of the samples of other instances
        task = replace(task, rehearsal=None)
    trained = TRAINERS[trainer](
        model=task.model,
        args=args,
        **task.trainer_arguments,
        peft_config=task.peft_config,
    )
    player = Player.of_trainer(task, trained)
    return train_until_spent(trained, player, budget, interval, lambda: trained.num_environment_steps)
